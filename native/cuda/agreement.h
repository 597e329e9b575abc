// Agreement on a backend: all members of a group create and test the candidates in order; one that
// fails on a member is dropped by all. If both the ring and NCCL pass, they are timed against each
// other with a sum of a few MiB on the slowest member. NCCL must be clearly faster, because the
// ring's sums have the same bytes as the CPU's, in every run. Timing costs the creation of both. If
// NCCL comes before the ring it is preferred without timing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/device/choice.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// The agreed backend.
struct ChosenBackend {
  BackendKind kind = BackendKind::kStaged;
  std::unique_ptr<DeviceBackend> backend;
  std::string notice;  // for the user, on the group's first member: why it is not the preferred one
};

// Collective. An error, the same on all members: of the first candidate, or the mesh's abort.
Result<ChosenBackend> agree_on(const std::vector<BackendKind>& candidates,
                               BootstrapGroup bootstrap);

// Times of a sum, in seconds on the slowest member.
bool is_worth_it(double nccl, double ring);

}  // namespace hvd::cuda
