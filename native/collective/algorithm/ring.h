// The collectives of a ring as schedules. Every member holds two ends: a link to its right
// neighbour (group rank + 1) and one from its left neighbour. A schedule is what one member does
// with every segment, one verb per step:
//   send                    my input -> slot
//   recv_reduce_send        slot + my input -> slot
//   recv_reduce_copy_send   slot + my input, finished (divided, scaled, rounded) -> my output and
//                           slot
//   recv_copy_send          slot -> my output and slot
//   recv_reduce             slot + my input, finished -> my output
//   recv                    slot -> my output
// Allreduce on n members: slice o starts at group rank o + 1, is reduced by o + 2, ..., is finished
// by its owner o and then passed on for all members to copy. Reduce-scatter ends at the owner.
//
// Why no deadlock and no bubble: a member begins with `window` sends and then sends once per
// receive. It never has more than `window` messages more sent than received, and a window is
// one less than the slots of a link; so not every link of the ring can be full at once. Each step
// is executed for `window` segments before the next step, which gives a neighbour that much time.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/backend/communicator_context.h"
#include "collective/backend/plan.h"
#include "tensor/reduce.h"

namespace hvd {

enum class Verb { kSend, kRecvReduceSend, kRecvReduceCopySend, kRecvCopySend, kRecvReduce, kRecv };

struct Step {
  Verb verb;
  std::size_t chunk;
};

using Schedule = std::vector<Step>;

Schedule allreduce_schedule(int group_rank, int size);
Schedule reduce_scatter_schedule(int group_rank, int size);
Schedule allgather_schedule(int group_rank, int size);
Schedule broadcast_schedule(int group_rank, int size, int root);

// All members execute their schedules over plans of the same shape. Partial sums travel in the wire
// dtype, everything else as it is; a plain copy is one of bytes (kUint8).
Status execute(CommunicatorContext& context, const Schedule& schedule, const Plan& plan,
               const Reduction& reduction);

}  // namespace hvd
