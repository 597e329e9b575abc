// The members of a team as they meet, and how they tell each other: over their links on the host.
//
// How a backend is made. make_ring_backend (ring_backend.h), make_nccl_backend (nccl_backend.h) and
// make_staged_backend (staged_backend.h) have the same form:
//   Result<std::unique_ptr<DeviceBackend>> make_..._backend(const Party& party);
// They are collective: every member of party.team calls, and calls tell_all() equally often
// whatever goes wrong on it (it says so in what it tells; who hears that fails too). Whether all
// are well at the end, the meeting asks. None of them waits for the device.
#pragma once

#include <memory>
#include <vector>

#include "collective/accelerator.h"
#include "cuda/device/device.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

class DeviceBackend;

// Who meets. Backends keep what they need of it; mesh, cpu and driver outlive them.
struct Party {
  std::shared_ptr<Device> device;
  Mesh* mesh = nullptr;
  Backend* cpu = nullptr;
  Team team;
  std::vector<Facts> members;  // by place
  double trial_seconds = AcceleratorOptions{}.trial_seconds;

  const Facts& mine() const { return members[static_cast<std::size_t>(team.place)]; }
};

std::size_t least_arena(const std::vector<Facts>& members);

// Every member tells all the same number of bytes; `all` has room for team.size() times as many, by
// place, the own ones too. Waits for the others, and ends with the mesh's abort.
Status tell_all(Backend& cpu, const Team& team, const void* mine, void* all, std::size_t bytes);

template <typename T>
Result<std::vector<T>> tell_all(const Party& party, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>, "what is told is plain bytes");
  std::vector<T> all(static_cast<std::size_t>(party.team.size()));
  Status status = tell_all(*party.cpu, party.team, &mine, all.data(), sizeof(T));
  if (!status) return status;
  return all;
}

// How it went for the members: if it went wrong for one, its reason, the same on all of them.
Status all_went_well(const Party& party, const Status& mine);

// Waits until all members are here. `why` they end what they do, or the mesh's abort.
Status end_together(const Party& party, const Status& why);
// Closes what the backend has mapped of the others' memory. When all have done so, it may go.
Status part_together(DeviceBackend& backend, const Party& party, const Status& why);

}  // namespace hvd::cuda
