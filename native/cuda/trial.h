// What a way between devices has to show before anybody relies on it: that its sums are right and
// come in time. Drivers, topologies and virtual machines differ more than they say: what the facts
// allow may still hang, or give wrong sums. A way that fails is not taken, the next one is.
//   form   one of several ways in which a backend can do the same (DeviceBackend::forms()); the one
//          whose slowest member was fastest is taken
//   lap    one allreduce of known numbers by one form
#pragma once

#include "cuda/device_backend.h"
#include "cuda/meeting.h"

namespace hvd::cuda {

// Collective: the same outcome on all members, unless the mesh's abort came. Waits for the device,
// a lap at most so many seconds (NCCL connects in its first one). Nothing is tried while a member
// captures a graph.
Status pass_trial(DeviceBackend& backend, const Party& party, double lap_seconds = 20);

}  // namespace hvd::cuda
