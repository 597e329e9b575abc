// At the first operation of a team its members meet: each tells the others over their links what it
// has (Facts), all choose alike (choice.h), each makes its backend, and they tell each other
// whether that went well. If not, all take the next way, or fail alike with the first one's reason.
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
#include "cuda/choice.h"
#include "cuda/device.h"
#include "cuda/device_backend.h"

namespace hvd::cuda {

// Who meets. Backends keep what they need of it; mesh, cpu and driver outlive them.
struct Party {
  std::shared_ptr<Device> device;
  Mesh* mesh = nullptr;
  Backend* cpu = nullptr;
  Team team;
  std::vector<Facts> members;  // by place

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

// What the members have agreed on.
struct Agreed {
  Way way = Way::kStaged;
  std::unique_ptr<DeviceBackend> backend;
};

// device: null where it could not be opened; `trouble` says why. Then all members get that as
// their error.
struct Guest {
  std::shared_ptr<Device> device;
  Status trouble;
};

Result<Agreed> meet(const Guest& guest, Mesh& mesh, Backend& cpu, const Team& team,
                    const AcceleratorOptions& options);

}  // namespace hvd::cuda
