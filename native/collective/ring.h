// The collectives as sentences of verbs. Every rank holds two ends of the ring: a link to its right
// neighbour (rank + 1) and one from its left neighbour. A sentence is what one rank does with every
// segment, one verb per step:
//   send                     my input -> slot
//   recv_reduce_send         slot + my input -> slot
//   recv_reduce_copy_send    slot + my input, finished (divided, scaled, rounded) -> my output and
//   slot recv_copy_send           slot -> my output and slot recv                     slot -> my
//   output
// Allreduce on n ranks: chunk c sets out at rank c, is reduced by c+1, c+2, ..., is finished by c-1
// and then passed on for everybody to copy. So the order of every element's sum depends on nothing
// but its place in its tensor and the number of ranks.
//
// Why no deadlock and no bubble: a rank begins with `window` sends and from then on sends once per
// receive. It never has more than `window` messages more sent than received, and a window is one
// less than the slots of a link; so not every link of the ring can be full at once. Each step is
// spoken for `window` segments before the next step, which gives a neighbour that much time.
#pragma once

#include <vector>

#include "base/abort.h"
#include "base/status.h"
#include "collective/plan.h"
#include "tensor/dtype.h"
#include "tensor/reduce.h"
#include "transport/link.h"

namespace hvd {

struct Ring {
  int rank = 0;
  int size = 1;
  SendLink& to;    // the right neighbour
  RecvLink& from;  // the left neighbour
  const Abort& abort;
};

enum class Verb { kSend, kRecvReduceSend, kRecvReduceCopySend, kRecvCopySend, kRecv };

struct Step {
  Verb verb;
  std::size_t chunk;
};

using Sentence = std::vector<Step>;

Sentence allreduce_sentence(int rank, int size);
Sentence allgather_sentence(int rank, int size);
Sentence broadcast_sentence(int rank, int size, int root);

// What the elements are: partial sums travel in the wire dtype, everything else as it is. Plain
// copies: bytes (kUint8).
struct Elements {
  Dtype dtype = Dtype::kUint8;
  Scaling scaling;
};

// All ranks of the ring speak their sentences over plans of the same shape.
Status speak(const Ring& ring, const Sentence& sentence, const Plan& plan,
             const Elements& elements);

}  // namespace hvd
