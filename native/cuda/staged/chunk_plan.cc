#include "cuda/staged/chunk_plan.h"

#include <algorithm>
#include <utility>

#include "collective/backend/plan.h"

namespace hvd::cuda {
namespace {

constexpr std::size_t kLine = 64;

std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

class Cutter {
 public:
  Cutter(std::size_t element_bytes, std::size_t room)
      : element_bytes_(element_bytes), room_(room) {}

  void add(std::size_t tensor, const RowLengths& rows) {
    const std::size_t column_bytes = rows.lengths.size() * element_bytes_;
    for (std::size_t begin = 0; begin < rows.columns;) {
      std::size_t fitting = used_ < room_ ? (room_ - used_) / column_bytes : 0;
      if (fitting == 0 && used_ > 0) {
        end_chunk();
        continue;
      }
      fitting = std::max<std::size_t>(fitting, 1);
      const std::size_t end = fitting < rows.columns - begin ? begin + fitting : rows.columns;
      strips_.push_back({tensor, begin, end, used_});
      used_ += whole_lines((end - begin) * column_bytes);
      begin = end;
    }
  }

  ChunkPlan take() {
    if (used_ > 0) end_chunk();
    return std::move(cut_);
  }

 private:
  void end_chunk() {
    cut_.bytes = std::max(cut_.bytes, used_);
    cut_.chunks.push_back(std::exchange(strips_, {}));
    used_ = 0;
  }

  std::size_t element_bytes_, room_;
  std::size_t used_ = 0;  // of the chunk that is being filled
  Chunk strips_;
  ChunkPlan cut_;
};

}  // namespace

RowLengths::RowLengths(std::vector<std::size_t> all) : lengths(std::move(all)) {
  for (const std::size_t length : lengths) columns = std::max(columns, length);
}

RowLengths slices_of(std::size_t count, std::size_t group_ranks) {
  std::vector<std::size_t> lengths;
  lengths.reserve(group_ranks);
  for (std::size_t group_rank = 0; group_rank < group_ranks; ++group_rank) {
    lengths.push_back(slice_begin(count, group_rank + 1, group_ranks) -
                      slice_begin(count, group_rank, group_ranks));
  }
  return RowLengths(std::move(lengths));
}

std::size_t part_of(std::size_t length, const ChunkPart& strip) {
  return std::min(length, strip.end) - std::min(length, strip.begin);
}

ChunkPlan plan_chunks(const std::vector<RowLengths>& tensors, std::size_t element_bytes,
                      std::size_t room) {
  Cutter cutter(element_bytes, room);
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor)
    cutter.add(tensor, tensors[tensor]);
  return cutter.take();
}

}  // namespace hvd::cuda
