// The members of a group as they meet, and how they tell each other: over their links on the host.
//
// How a backend is made. make_ring_backend (ring_backend.h), make_nccl_backend (nccl_backend.h) and
// make_staged_backend (staged_backend.h) have the same form:
//   Result<std::unique_ptr<DeviceBackend>> make_..._backend(const BootstrapGroup& bootstrap);
// They are collective: every member of bootstrap.group calls, and calls bootstrap_allgather()
// equally often whatever goes wrong on it (it says so in what it tells; who hears that fails too).
// Whether all are well at the end, who has them made asks. None of them waits for the device.
#pragma once

#include <memory>
#include <vector>

#include "collective/accelerator.h"
#include "cuda/device/device.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

class DeviceBackend;

// Who meets. Backends keep what they need of it; mesh, cpu and driver outlive them.
struct BootstrapGroup {
  std::shared_ptr<Device> device;
  Mesh* mesh = nullptr;
  Backend* cpu = nullptr;
  Group group;
  std::vector<PeerInfo> members;  // by group rank
  double self_test_seconds = AcceleratorOptions{}.self_test_seconds;

  const PeerInfo& mine() const { return members[static_cast<std::size_t>(group.group_rank)]; }
};

std::size_t least_arena(const std::vector<PeerInfo>& members);

// Every member tells all the same number of bytes; `all` has room for group.size() times as many,
// by group rank, the own ones too. Waits for the others, and ends with the mesh's abort.
Status bootstrap_allgather(Backend& cpu, const Group& group, const void* mine, void* all,
                           std::size_t bytes);

template <typename T>
Result<std::vector<T>> bootstrap_allgather(const BootstrapGroup& bootstrap, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>, "what is exchanged is plain bytes");
  std::vector<T> all(static_cast<std::size_t>(bootstrap.group.size()));
  Status status =
      bootstrap_allgather(*bootstrap.cpu, bootstrap.group, &mine, all.data(), sizeof(T));
  if (!status) return status;
  return all;
}

// How it went for the members: if it went wrong for one, its reason, the same on all of them.
Status all_went_well(const BootstrapGroup& bootstrap, const Status& mine);

// Waits until all members are here. `why` they end what they do, or the mesh's abort.
Status end_together(const BootstrapGroup& bootstrap, const Status& why);
// Closes what the backend has mapped of the others' memory. When all have done so, it may go.
Status part_together(DeviceBackend& backend, const BootstrapGroup& bootstrap, const Status& why);

}  // namespace hvd::cuda
