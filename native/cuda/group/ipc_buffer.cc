#include "cuda/group/ipc_buffer.h"

#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "cuda/group/bootstrap_group.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/ipc_buffer";
// The driver allocates small memory as pieces of such blocks, and a handle refers to the whole
// block.
constexpr std::size_t kBlockBytes = std::size_t{2} << 20U;

std::byte* pointer(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Memory of ranks that are threads of this process, by address.
class LocalBuffers {
 public:
  void add(CUdeviceptr address, const std::shared_ptr<IpcBuffer>& memory) {
    const MutexLock lock(mutex_);
    known_[address] = memory;
  }
  void forget(CUdeviceptr address) {
    const MutexLock lock(mutex_);
    known_.erase(address);
  }
  // nullptr: none.
  std::shared_ptr<IpcBuffer> find(CUdeviceptr address) {
    const MutexLock lock(mutex_);
    const auto found = known_.find(address);
    return found == known_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::map<CUdeviceptr, std::weak_ptr<IpcBuffer>> known_;
};

LocalBuffers& known() {
  static auto& the_registry = *new LocalBuffers;  // leaked: memory may be released at process exit
  return the_registry;
}

Status all_have_handles(const BootstrapGroup& bootstrap, const std::vector<MemoryOffer>& offers) {
  for (std::size_t group_rank = 0; group_rank < offers.size(); ++group_rank) {
    const int rank = bootstrap.members[group_rank].rank;
    if (offers[group_rank].bytes == 0) {
      return Status::make(Code::kUnavailable,
                          "rank " + std::to_string(rank) + " has no memory for the ring", kRoom,
                          rank);
    }
  }
  return Status::ok();
}

// May fail on one member and succeed on another.
Result<Peers> map_all(const BootstrapGroup& bootstrap, const IpcBuffer* mine) {
  const auto offers = bootstrap_allgather(
      bootstrap, mine == nullptr ? MemoryOffer{} : mine->offer(bootstrap.mine().process));
  if (!offers) return offers.status();
  if (Status status = all_have_handles(bootstrap, offers.value()); !status) return status;
  Peers peers;
  for (std::size_t group_rank = 0; group_rank < offers.value().size(); ++group_rank) {
    peers.emplace_back();
    if (static_cast<int>(group_rank) == bootstrap.group.group_rank) continue;
    auto peer = ImportedBuffer::open(bootstrap.device, bootstrap.mine(),
                                     bootstrap.members[group_rank], offers.value()[group_rank]);
    if (!peer) return peer.status();
    peers.back() = peer.take();
  }
  return peers;
}

}  // namespace

Result<std::shared_ptr<IpcBuffer>> IpcBuffer::allocate(const std::shared_ptr<Device>& device,
                                                       std::size_t bytes) {
  const Current current(*device);
  if (!current) return current.status();
  const Driver& driver = device->driver();
  const std::size_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  CUdeviceptr address = 0;
  Status status = driver.check(driver.cuMemAlloc(&address, blocks * kBlockBytes),
                               "cuMemAlloc of memory for other ranks");
  if (!status) return status;
  auto memory = std::make_shared<IpcBuffer>(device, address, bytes);
  known().add(address, memory);
  status = driver.check(driver.cuIpcGetMemHandle(&memory->handle_, address),
                        "cuIpcGetMemHandle of memory for other ranks");
  if (!status) return status;
  return memory;
}

IpcBuffer::IpcBuffer(std::shared_ptr<Device> device, CUdeviceptr address, std::size_t bytes)
    : device_(std::move(device)), address_(address), bytes_(bytes) {}

IpcBuffer::~IpcBuffer() {
  known().forget(address_);
  if (const Current current(*device_); current) device_->driver().cuMemFree(address_);
}

std::byte* IpcBuffer::base() const { return pointer(address_); }

MemoryOffer IpcBuffer::offer(std::uint64_t process) const {
  return {process, address_, bytes_, handle_};
}

Result<std::unique_ptr<ImportedBuffer>> ImportedBuffer::open(const std::shared_ptr<Device>& device,
                                                             const PeerInfo& mine,
                                                             const PeerInfo& peer,
                                                             const MemoryOffer& offer) {
  const Current current(*device);
  if (!current) return current.status();
  std::unique_ptr<ImportedBuffer> memory(new ImportedBuffer(device));
  Status status = mine.process == peer.process ? memory->share(offer) : memory->map(offer);
  if (!status) {
    status.message += " (the memory is rank " + std::to_string(peer.rank) + "'s)";
    return status;
  }
  return memory;
}

Status ImportedBuffer::share(const MemoryOffer& offer) {
  shared_ = known().find(offer.address);
  if (shared_ == nullptr)
    return Status::make(Code::kUnavailable, "the memory is gone: its rank gave it up", kRoom);
  const CUcontext theirs = shared_->device().context();
  if (theirs == device_->context()) return Status::ok();
  const Driver& driver = device_->driver();
  const CUresult result = driver.cuCtxEnablePeerAccess(theirs, 0);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return Status::ok();
  return driver.check(result, "cuCtxEnablePeerAccess");
}

Status ImportedBuffer::map(const MemoryOffer& offer) {
  const Driver& driver = device_->driver();
  return driver.check(
      driver.cuIpcOpenMemHandle(&mapped_, offer.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      "cuIpcOpenMemHandle of another rank's memory");
}

ImportedBuffer::~ImportedBuffer() {
  if (mapped_ == 0) return;
  if (const Current current(*device_); current) device_->driver().cuIpcCloseMemHandle(mapped_);
}

std::byte* ImportedBuffer::base() const {
  return shared_ != nullptr ? shared_->base() : pointer(mapped_);
}

Result<Peers> exchange_handles(const BootstrapGroup& bootstrap, const IpcBuffer* mine,
                               const Status& own) {
  Status status = Status::ok();
  {
    auto peers = map_all(bootstrap, mine);
    status = all_went_well(bootstrap, own ? peers.status() : own);
    if (status) return peers;
  }
  return end_together(bootstrap, status);
}

}  // namespace hvd::cuda
