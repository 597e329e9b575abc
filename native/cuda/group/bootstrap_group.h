// The members of a group during initialisation, and their exchanges over their links on the host.
//
// How a backend is made. make_ring_backend (ring_backend.h), make_nccl_backend (nccl_backend.h) and
// make_staged_backend (staged_backend.h) have the same form:
//   Result<std::unique_ptr<DeviceBackend>> make_..._backend(const BootstrapGroup& bootstrap);
// They are collective: every member of bootstrap.group calls them, and makes the same number of
// calls of bootstrap_allgather() even if it fails (it sends its failure, and members that receive
// one fail, too). Their caller checks at the end whether all members succeeded. None of them waits
// for the device.
#pragma once

#include <memory>
#include <vector>

#include "collective/accelerator.h"
#include "cuda/device/device.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

class DeviceBackend;

// The group and its members. Backends copy what they need; mesh, cpu and driver outlive them.
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

// Exchange the same number of bytes between all members; `all` has room for group.size() times
// that, indexed by group rank, including the own ones. Waits for the other members; returns the
// mesh's abort.
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

// The common status of all members: the reason of a failed one, the same on all of them.
Status all_went_well(const BootstrapGroup& bootstrap, const Status& mine);

// Wait for all members, then return `why`, or the mesh's abort.
Status end_together(const BootstrapGroup& bootstrap, const Status& why);
// Unmap the other members' memory. When all have done so, the backend may be destroyed.
Status part_together(DeviceBackend& backend, const BootstrapGroup& bootstrap, const Status& why);

}  // namespace hvd::cuda
