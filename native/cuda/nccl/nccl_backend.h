// NCCL backend: one communicator per group, one device per rank.
//
// Properties. The order of a sum is NCCL's own: it depends on NCCL's algorithm, thus on size,
// topology and version, and 16-bit numbers may be rounded at every step. All ranks still get the
// same bytes. Integers are exact and wrap as on the host. Min and Max of floats may pass over a
// NaN. Factors (prescale, postscale, the average's divisor) are applied by our own kernels before
// and after, as in the other backends, not by NCCL's scaled operators, which round the factor to
// the tensor's type. Reductions that NCCL lacks (nccl.h) are staged: Adasum, 16-bit integers,
// products of complex numbers.
//
// Nothing blocks in NCCL: the communicator is nonblocking, and waiting code checks the mesh's abort
// (nccl_comm.h).
#pragma once

#include <memory>

#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// The version of the usable NCCL; 0: none, or its calls would block (NCCL_COMM_BLOCKING=1).
int nccl_version();

constexpr double kNcclStartSeconds = 60;

// See bootstrap_group.h; the same result on all members. A member that does not join within
// start_timeout_s is an error on all.
Result<std::unique_ptr<DeviceBackend>> make_nccl_backend(
    const BootstrapGroup& bootstrap, double start_timeout_s = kNcclStartSeconds);

}  // namespace hvd::cuda
