#include "cuda/ring/packing_plan.h"

#include <algorithm>

namespace hvd::cuda {
namespace {

constexpr std::size_t kAlignment = 16;

// The first offset >= `filled` with the same remainder modulo 16 as the element in its tensor.
std::size_t place_for(std::size_t filled, std::size_t in_tensor) {
  return filled + (in_tensor - filled) % kAlignment;  // unsigned: never decreases
}

template <typename Byte, typename T>
Byte* moved(T* base, std::size_t bytes) {
  return base == nullptr ? nullptr : static_cast<Byte*>(base) + bytes;
}

}  // namespace

PackingPlan::PackingPlan(std::size_t width, std::size_t chunks, std::size_t room)
    : width_(width), room_(room), chunks_(chunks) {}

void PackingPlan::add(std::size_t chunk, const void* in, void* out, std::size_t before,
                      std::size_t count) {
  std::vector<Round>& rounds = chunks_[chunk];
  for (std::size_t done = 0; done < count;) {
    const std::size_t in_tensor = (before + done) * width_;
    const std::size_t filled = rounds.empty() ? room_ : extent(chunk, rounds.size() - 1);
    std::size_t at = place_for(filled, in_tensor);
    if (at + width_ > room_) {
      rounds.emplace_back();
      at = place_for(0, in_tensor);
    }
    const std::size_t fit = std::min(count - done, (room_ - at) / width_);
    rounds.back().push_back(
        {moved<const std::byte>(in, done * width_), moved<std::byte>(out, done * width_), fit, at});
    done += fit;
  }
}

std::size_t PackingPlan::rounds() const {
  std::size_t most = 0;
  for (const std::vector<Round>& chunk : chunks_) most = std::max(most, chunk.size());
  return most;
}

const std::vector<PackedPiece>& PackingPlan::shares(std::size_t chunk, std::size_t round) const {
  return round < chunks_[chunk].size() ? chunks_[chunk][round] : nothing_;
}

std::size_t PackingPlan::extent(std::size_t chunk, std::size_t round) const {
  const Round& all = shares(chunk, round);
  return all.empty() ? 0 : all.back().at + all.back().count * width_;
}

}  // namespace hvd::cuda
