// Initialisation at the first operation of a group: the members exchange their capabilities over
// their links (peer_info.h), all compute the same candidates (choice.h), and they create and test
// them until one passes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/accelerator.h"
#include "cuda/device/choice.h"
#include "cuda/device/device.h"
#include "cuda/device/peer_info.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// Agreement on a backend: all members of a group create and test the candidates in order; one that
// fails on a member is dropped by all. If both the ring and NCCL pass, they are timed against each
// other with a sum of a few MiB on the slowest member. NCCL must be clearly faster, because the
// ring's sums have the same bytes as the CPU's, in every run. Timing costs the creation of both. If
// NCCL comes before the ring it is preferred without timing.

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

// device: nullptr if it could not be opened; `trouble` is then the error of all members.
struct LocalDevice {
  std::shared_ptr<Device> device;
  Status trouble;
};

// known: of this rank's engine; records the members' devices.
Result<ChosenBackend> init_backend(const LocalDevice& local, Mesh& mesh, Backend& cpu,
                                   const Group& group, const AcceleratorOptions& options,
                                   KnownDevices& known);

}  // namespace hvd::cuda
