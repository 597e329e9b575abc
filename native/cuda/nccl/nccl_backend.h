// Over NCCL: one communicator per group, one device per rank.
//
// What NCCL gives, and what it does not. The order of a sum is NCCL's own: it depends on the
// algorithm that NCCL takes, thus on size, topology and version, and 16-bit numbers may be rounded
// at every step. All ranks still get the same bytes. Integers are exact and wrap as on the host.
// Min and Max of floats may pass over a NaN. Factors (prescale, postscale, the average's divisor)
// are applied by our own kernels before and behind, as the other backends do it, not by NCCL's
// scaled operators, which round the factor to the tensor's type. What NCCL cannot reduce
// (nccl_kind.h) goes the staged way: Adasum, 16-bit integers, products of complex numbers.
//
// Nothing here blocks in NCCL: the communicator is a non-blocking one, and whoever waits for it
// looks at the mesh's abort (nccl_comm.h).
#pragma once

#include <memory>

#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// Of the NCCL that this process can use; 0: there is none, or its calls would block
// (NCCL_COMM_BLOCKING=1).
int nccl_version();

constexpr double kNcclStartSeconds = 60;

// As bootstrap_group.h says; the same on all members. A member that does not come within
// start_timeout_s is an error on all.
Result<std::unique_ptr<DeviceBackend>> make_nccl_backend(
    const BootstrapGroup& bootstrap, double start_timeout_s = kNcclStartSeconds);

}  // namespace hvd::cuda
