#include "cuda/ring/arena.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/device/pinned.h"

namespace hvd::cuda {

namespace {

constexpr std::size_t kWordsAlignment = 256;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

ArenaShape::ArenaShape(std::size_t bytes, std::size_t members)
    : members_(members),
      words_bytes_(
          rounded_up(kPhases * kHalves * members * sizeof(std::uint32_t), kWordsAlignment)),
      half_bytes_(bytes < words_bytes_
                      ? 0
                      : (bytes - words_bytes_) / kHalves / kWordsAlignment * kWordsAlignment) {}

Arena::Arena(std::shared_ptr<Device> device, std::size_t bytes)
    : device_(std::move(device)), bytes_(bytes) {}

Result<std::unique_ptr<Arena>> Arena::make(const std::shared_ptr<Device>& device, std::size_t bytes,
                                           std::size_t members, const Abort& abort) {
  const ArenaShape shape(bytes, members);
  if (shape.room() == 0) {
    return Status::make(Code::kInvalidArgument,
                        "an arena of " + std::to_string(bytes) + " bytes is too small for " +
                            std::to_string(members) +
                            " ranks: give HOROVOD_GPU_ARENA_BYTES a larger value",
                        "cuda/arena: make");
  }
  const Current current(*device);
  if (!current) return current.status();
  std::unique_ptr<Arena> arena(new Arena(device, bytes));
  Status status = arena->allocate();
  if (status) status = arena->open_stream();
  if (status) status = arena->write_words(shape, members, abort);
  if (!status) return status;
  return arena;
}

Status Arena::allocate() {
  auto memory = IpcBuffer::allocate(device_, bytes_);
  if (!memory) return memory.status();
  memory_ = memory.take();
  return Status::ok();
}

// Streams of one priority may share a hardware queue, in which the device's own stream, with the
// greatest priority, may be waiting for a word. No other stream uses the next lower priority.
Status Arena::open_stream() {
  const Driver& driver = device_->driver();
  int least = 0, greatest = 0;
  Status status = driver.check(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
                               "cuCtxGetStreamPriorityRange");
  if (!status) return status;
  const int next =
      greatest < least ? greatest + 1 : least;  // smaller numbers are greater priorities
  return driver.check(driver.cuStreamCreateWithPriority(&aside_, CU_STREAM_NON_BLOCKING, next),
                      "cuStreamCreateWithPriority");
}

Status Arena::write_words(const ArenaShape& shape, std::size_t members, const Abort& abort) {
  const Driver& driver = device_->driver();
  const CUdeviceptr words = memory_->address();
  const CUdeviceptr freed = words + shape.word(Phase::kFreed, 0, 0);
  Status status = driver.check(driver.cuMemsetD32Async(words, 0, (freed - words) / 4, aside_),
                               "cuMemsetD32Async of an arena's words");
  if (!status) return status;
  status = driver.check(driver.cuMemsetD32Async(freed, 1, kHalves * members, aside_),
                        "cuMemsetD32Async of an arena's words");
  if (!status) return status;
  return wait_for_stream(*device_, aside_, abort);
}

Arena::~Arena() {
  if (aside_ == nullptr) return;
  if (const Current current(*device_); current) device_->driver().cuStreamDestroy(aside_);
}

std::byte* Arena::base() const { return memory_->base(); }

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
