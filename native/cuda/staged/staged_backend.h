// Over host memory, where nothing else can: device -> pinned host memory -> the backend for host
// memory, which does the operation between the ranks -> device. Here the host waits for the device:
// for the inputs' copies, not for the results'. The same bytes as that backend gives for the same
// tensors.
//
// Large operations are cut into chunks, so that the copies of one go on while another is reduced:
// two pinned buffers take turns. How they are cut so that the order of every sum stays what it was
// is in chunk_plan.h.
#pragma once

#include <memory>

#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

constexpr std::size_t kStagedChunk = std::size_t{4} << 20U;

// As bootstrap_group.h says; tells nothing. chunk_bytes: the same on all members.
Result<std::unique_ptr<DeviceBackend>> make_staged_backend(const BootstrapGroup& bootstrap,
                                                           std::size_t chunk_bytes = kStagedChunk);

}  // namespace hvd::cuda
