// The candidates are made and tested in their order, by all members of a group alike: one that goes
// wrong for a member is none for all of them. The ring and NCCL are timed against each other where
// both pass: a sum of a few MiB, by the time of the slowest member. NCCL has to be clearly faster,
// for with the ring sums have the CPU's bytes, run after run. Timing costs what it takes to make
// both. An NCCL that comes before the ring is preferred, and not timed against it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/choice.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// What the members have agreed on.
struct ChosenBackend {
  BackendKind kind = BackendKind::kStaged;
  std::unique_ptr<DeviceBackend> backend;
  std::string
      notice;  // for the user, of the group's first member: why it is not the one wished for
};

// Collective. An error, alike on all: the first candidate's, or the mesh's abort.
Result<ChosenBackend> agree_on(const std::vector<BackendKind>& candidates,
                               BootstrapGroup bootstrap);

// Times of a sum, in seconds on the slowest member.
bool is_worth_it(double nccl, double ring);

}  // namespace hvd::cuda
