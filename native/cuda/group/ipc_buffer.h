// Device memory of one rank that others use where it lies.
//   offer   what its owner tells of it, plain bytes: how another process maps it, and how a rank
//           that is a thread of the same process finds it
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
  std::uint64_t process = 0;  // Peer info::process
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  // 0: there is none
  CUipcMemHandle handle{};
};

// This rank's. Peers in the same process share it. Peers in other processes close it before it
// goes: what happens otherwise the driver leaves open. Only behind a failure, where nobody knows
// when they will, it goes before that; they do not use it any more then.
class IpcBuffer {
 public:
  // Of whole blocks of the driver's, so that no handle gives away anything else. kUnavailable:
  // there is not that much.
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

// A peer's, as this process sees it.
class ImportedBuffer {
 public:
  // mine: of this member; peer: of the one whose offer it is.
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

// By group rank, null at the own one.
using Peers = std::vector<std::unique_ptr<ImportedBuffer>>;

// The members exchange the handles of their buffers (null: none, for the reason `own`), and each
// maps the others'. Collective. It goes well for all or for none; for none, nobody has memory of
// another mapped any more, and each may free its own.
Result<Peers> exchange_handles(const BootstrapGroup& bootstrap, const IpcBuffer* mine,
                               const Status& own);

}  // namespace hvd::cuda
