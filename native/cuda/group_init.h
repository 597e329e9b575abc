// At the first operation of a group its members meet: each tells the others over their links what
// it has (peer_info.h), all see alike which backends are candidates (choice.h), and they make and
// test them until one is taken (agreement.h).
#pragma once

#include <memory>

#include "collective/accelerator.h"
#include "cuda/agreement.h"
#include "cuda/device/device.h"
#include "cuda/device/known_devices.h"

namespace hvd::cuda {

// device: null where it could not be opened; `trouble` says why. Then all members get that as their
// error.
struct LocalDevice {
  std::shared_ptr<Device> device;
  Status trouble;
};

// known: of this rank's engine; hears of the members' devices.
Result<ChosenBackend> init_backend(const LocalDevice& local, Mesh& mesh, Backend& cpu,
                                   const Group& group, const AcceleratorOptions& options,
                                   KnownDevices& known);

}  // namespace hvd::cuda
