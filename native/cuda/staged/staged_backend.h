// Staged backend over host memory, always possible: device -> pinned host memory -> the backend for
// host memory, which executes the operation between the ranks -> device. The host waits for the
// copies of the inputs, not for those of the results. The result has the same bytes as the host
// backend's.
//
// Large operations are cut into chunks, so that the copies of one overlap the reduction of another,
// in two alternating pinned buffers. chunk_plan.h splits them without changing the order of any
// sum.
#pragma once

#include <memory>

#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

constexpr std::size_t kStagedChunk = std::size_t{4} << 20U;

// See bootstrap_group.h; exchanges nothing. chunk_bytes: the same on all members.
Result<std::unique_ptr<DeviceBackend>> make_staged_backend(const BootstrapGroup& bootstrap,
                                                           std::size_t chunk_bytes = kStagedChunk);

}  // namespace hvd::cuda
