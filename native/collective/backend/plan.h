// Terms.
//   operand   one tensor of an operation: addresses of its input and its result (equal: in place)
//   chunk     the share of an operation that belongs to one member: for a reduction the list of its
//             slices of all operands, else the data that it sends or receives
//   segment   the piece of a chunk that one slot of a link carries
//   span      the piece of a segment within one operand
// A plan is the list of these pieces and nothing else. Fusion is a longer list, not a buffer, and
// because slices are cut operand by operand, fusion never moves an element to another chunk: the
// order of its sum is the same as alone.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <vector>

#include "base/status.h"
#include "tensor/reduce.h"
#include "tensor/slot_store.h"

namespace hvd {

struct Operand {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  // elements
};

struct Span {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  // elements
};

std::size_t elements_of(const std::vector<Operand>& operands);

// The spans of one segment.
struct Segment {
  const Span* first = nullptr;
  const Span* last = nullptr;
  const Span* begin() const { return first; }
  const Span* end() const { return last; }
};

inline std::size_t elements_of(const Segment& segment) {
  std::size_t count = 0;
  for (const Span& span : segment) count += span.count;
  return count;
}

// Copy the segment's inputs, prescaled, into one piece of a slot, and such a piece to the segment's
// outputs. Both return the end of the piece.
std::byte* pack(const Segment& segment, const Reduction& reduction, std::byte* to,
                SlotStore& store);
const std::byte* unpack(const Segment& segment, std::size_t element_bytes, const std::byte* from);
// The address of a span's prescaled input: its output, unless there is nothing to scale.
const std::byte* prescaled(const Span& span, const Reduction& reduction);

// Elements are bytes, copied unchanged.
inline Reduction plain_bytes() {
  Reduction bytes;
  bytes.dtype = Dtype::kUint8;
  return bytes;
}

class Plan {
 public:
  // chunks: number of slices per operand; longest: elements of a segment.
  static Plan sliced(const std::vector<Operand>& operands, std::size_t element_bytes,
                     std::size_t chunks, std::size_t longest);
  // Chunk c is the operands of list c, whole.
  static Plan listed(const std::vector<std::vector<Operand>>& chunks, std::size_t element_bytes,
                     std::size_t longest);

  // The same number for every chunk: shorter chunks end with empty segments.
  std::size_t segments() const { return segments_; }
  Segment segment(std::size_t chunk, std::size_t number) const {
    const std::size_t at = chunk * segments_ + number;
    return {spans_.data() + begins_[at], spans_.data() + begins_[at + 1]};
  }

 private:
  Plan(std::size_t segments, std::size_t element_bytes, std::size_t longest)
      : segments_(segments), element_bytes_(element_bytes), longest_(longest) {}

  void append(const Operand& operand, std::size_t begin, std::size_t end);
  void end_segment();
  void end_chunk(std::size_t chunk);

  std::size_t segments_;
  std::size_t element_bytes_;
  std::size_t longest_;
  std::size_t filled_ = 0;  // elements in the segment that is being filled
  std::vector<Span> spans_;
  std::vector<std::size_t> begins_{0};  // of each segment, chunk by chunk
};

// The begin of slice `index` of `parts` in a tensor of `count` elements; the first slices are the
// longer ones.
inline std::size_t slice_begin(std::size_t count, std::size_t index, std::size_t parts) {
  const std::size_t rest = count % parts;
  return count / parts * index + (index < rest ? index : rest);
}

// Terms.
//   batch   unit of work: one segment of every chunk
//   stage   one step of an algorithm, done for every batch: send, fold, copy out ...
//   lag     number of batches by which a stage runs behind the first: the time that a peer has for
//           its part
// In turn t every stage s does batch t - lag(s), in the order of the stages. All ranks run the
// same turns. There is no deadlock as long as (1) everything that a stage sends is received by a
// later stage or in a later turn, in the order of the link, and (2) no link needs more slots than
// it has: then a send waits only for receives of earlier turns and stages, and these only for still
// earlier sends.

struct Stage {
  std::size_t lag;
  std::function<Status(std::size_t batch)> work;
};

Status run_pipeline(std::size_t batches, std::initializer_list<Stage> stages);

}  // namespace hvd
