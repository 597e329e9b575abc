// Initialisation at the first operation of a group: the members exchange their capabilities over
// their links (peer_info.h), all compute the same candidates (choice.h), and they create and test
// them until one passes (agreement.h).
#pragma once

#include <memory>

#include "collective/accelerator.h"
#include "cuda/agreement.h"
#include "cuda/device/device.h"
#include "cuda/device/known_devices.h"

namespace hvd::cuda {

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
