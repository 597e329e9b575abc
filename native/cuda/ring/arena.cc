#include "cuda/ring/arena.h"

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

}  // namespace hvd::cuda
