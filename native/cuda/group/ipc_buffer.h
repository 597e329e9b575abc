// Device memory of one rank that other ranks access directly.
//   offer   plain bytes sent by its owner: how another process maps it, and how a rank that is a
//           thread of the same process finds it
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cuda/device/device.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

struct BootstrapGroup;

struct MemoryOffer {
  std::uint64_t process = 0;  // PeerInfo::process
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // 0: none
  CUipcMemHandle handle{};
};

// This rank's buffer. Peers in the same process share it. Peers in other processes unmap it before
// it is freed; otherwise the driver's behaviour is undefined. Only after a failure, when it is
// unknown whether they will, it is freed earlier; they do not use it any more then.
class IpcBuffer {
 public:
  // Consists of whole blocks of the driver, so that a handle exposes nothing else. kUnavailable:
  // not enough memory.
  static Result<std::shared_ptr<IpcBuffer>> allocate(const std::shared_ptr<Device>& device,
                                                     std::size_t bytes);
  IpcBuffer(std::shared_ptr<Device> device, CUdeviceptr address, std::size_t bytes);
  ~IpcBuffer();
  IpcBuffer(const IpcBuffer&) = delete;
  IpcBuffer& operator=(const IpcBuffer&) = delete;

  const Device& device() const { return *device_; }
  CUdeviceptr address() const { return address_; }
  std::byte* base() const;
  MemoryOffer offer(std::uint64_t process) const;

 private:
  std::shared_ptr<Device> device_;
  CUdeviceptr address_;
  std::size_t bytes_;
  CUipcMemHandle handle_{};
};

// A peer's buffer, mapped into this process.
class ImportedBuffer {
 public:
  // mine: of this member; peer: the owner of the offer.
  static Result<std::unique_ptr<ImportedBuffer>> open(const std::shared_ptr<Device>& device,
                                                      const PeerInfo& mine, const PeerInfo& peer,
                                                      const MemoryOffer& offer);
  ~ImportedBuffer();
  ImportedBuffer(const ImportedBuffer&) = delete;
  ImportedBuffer& operator=(const ImportedBuffer&) = delete;

  std::byte* base() const;

 private:
  explicit ImportedBuffer(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Status share(const MemoryOffer& offer);
  Status map(const MemoryOffer& offer);

  std::shared_ptr<Device> device_;
  std::shared_ptr<IpcBuffer> shared_;  // the same process
  CUdeviceptr mapped_ = 0;             // another one
};

// By group rank; nullptr for this rank.
using Peers = std::vector<std::unique_ptr<ImportedBuffer>>;

// Collective: exchange the handles of the members' buffers (nullptr: none, for the reason `own`)
// and map them. Succeeds on all members or on none; in the latter case no member has another's
// memory mapped, and each may free its own.
Result<Peers> exchange_handles(const BootstrapGroup& bootstrap, const IpcBuffer* mine,
                               const Status& own);

}  // namespace hvd::cuda
