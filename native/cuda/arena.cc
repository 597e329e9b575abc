#include "cuda/arena.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/pinned.h"

namespace hvd::cuda {
namespace {

constexpr std::size_t kWordsAlignment = 256;
// The driver hands out small memory in pieces of such blocks, and a handle is the whole block's.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20U;

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::byte* pointer(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

ArenaShape::ArenaShape(std::size_t bytes, std::size_t members)
    : members_(members),
      words_bytes_(
          rounded_up(kPhases * kHalves * members * sizeof(std::uint32_t), kWordsAlignment)),
      half_bytes_(bytes < words_bytes_
                      ? 0
                      : (bytes - words_bytes_) / kHalves / kWordsAlignment * kWordsAlignment) {}

class DeviceMemory {
 public:
  static Result<std::shared_ptr<DeviceMemory>> allocate(const std::shared_ptr<Device>& device,
                                                        std::size_t bytes) {
    CUdeviceptr address = 0;
    const Driver& driver = device->driver();
    Status status = driver.check(driver.cuMemAlloc(&address, bytes), "cuMemAlloc of an arena");
    if (!status) return status;
    auto memory = std::make_shared<DeviceMemory>(device, address);
    const std::lock_guard<std::mutex> lock(mutex());
    known()[address] = memory;
    return memory;
  }

  // Null: there is none at this address.
  static std::shared_ptr<DeviceMemory> find(CUdeviceptr address) {
    const std::lock_guard<std::mutex> lock(mutex());
    const auto found = known().find(address);
    return found == known().end() ? nullptr : found->second.lock();
  }

  DeviceMemory(std::shared_ptr<Device> device, CUdeviceptr address)
      : device_(std::move(device)), address_(address) {}
  ~DeviceMemory() {
    {
      const std::lock_guard<std::mutex> lock(mutex());
      known().erase(address_);
    }
    if (const Current current(*device_); current) device_->driver().cuMemFree(address_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  const Device& device() const { return *device_; }
  CUdeviceptr address() const { return address_; }

 private:
  // Arenas of ranks that are threads of this process find each other by address.
  static std::mutex& mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::map<CUdeviceptr, std::weak_ptr<DeviceMemory>>& known() {
    static auto& known = *new std::map<CUdeviceptr, std::weak_ptr<DeviceMemory>>;
    return known;
  }

  std::shared_ptr<Device> device_;
  CUdeviceptr address_;
};

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
  auto memory = DeviceMemory::allocate(device_, rounded_up(bytes_, kBlockBytes));
  if (!memory) return memory.status();
  memory_ = memory.take();
  const Driver& driver = device_->driver();
  return driver.check(driver.cuIpcGetMemHandle(&handle_, memory_->address()),
                      "cuIpcGetMemHandle of an arena");
}

// Streams of one priority may share a queue of the hardware, and the device's own stream, with the
// greatest priority, may stand there waiting for a word. The next lower priority is nobody else's.
Status Arena::open_stream() {
  const Driver& driver = device_->driver();
  int least = 0, greatest = 0;
  Status status = driver.check(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
                               "cuCtxGetStreamPriorityRange");
  if (!status) return status;
  const int next = greatest < least ? greatest + 1 : least;  // less is more
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
  auto written = device_->recorded(aside_);
  return written ? wait_for(*device_, written.value(), abort) : written.status();
}

Arena::~Arena() {
  if (aside_ == nullptr) return;
  if (const Current current(*device_); current) device_->driver().cuStreamDestroy(aside_);
}

ArenaOffer Arena::offer(std::uint64_t process) const {
  return {process, memory_->address(), bytes_, handle_};
}

std::byte* Arena::base() const { return pointer(memory_->address()); }

Result<std::unique_ptr<PeerArena>> PeerArena::open(const std::shared_ptr<Device>& device,
                                                   const Facts& mine, const Facts& peer,
                                                   const ArenaOffer& offer) {
  const Current current(*device);
  if (!current) return current.status();
  std::unique_ptr<PeerArena> arena(new PeerArena(device));
  Status status = mine.process == peer.process ? arena->share(offer) : arena->map(offer);
  if (!status) {
    status.message += " (the arena is rank " + std::to_string(peer.rank) + "'s)";
    return status;
  }
  return arena;
}

Status PeerArena::share(const ArenaOffer& offer) {
  shared_ = DeviceMemory::find(offer.address);
  if (shared_ == nullptr) {
    return Status::make(Code::kUnavailable, "the arena is gone: its rank gave the ring up",
                        "cuda/arena: share");
  }
  const CUcontext theirs = shared_->device().context();
  if (theirs == device_->context()) return Status::ok();
  const Driver& driver = device_->driver();
  const CUresult result = driver.cuCtxEnablePeerAccess(theirs, 0);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return Status::ok();
  return driver.check(result, "cuCtxEnablePeerAccess");
}

Status PeerArena::map(const ArenaOffer& offer) {
  const Driver& driver = device_->driver();
  return driver.check(
      driver.cuIpcOpenMemHandle(&mapped_, offer.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      "cuIpcOpenMemHandle of an arena");
}

PeerArena::~PeerArena() {
  if (mapped_ == 0) return;
  if (const Current current(*device_); current) device_->driver().cuIpcCloseMemHandle(mapped_);
}

std::byte* PeerArena::base() const {
  return pointer(shared_ != nullptr ? shared_->address() : mapped_);
}

}  // namespace hvd::cuda
