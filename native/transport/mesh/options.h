// Checks of MeshOptions, the same for every kind of mesh.
#pragma once

#include "base/status.h"
#include "transport/mesh/mesh.h"

namespace hvd {

Status check_options(int rank, int size, const MeshOptions& options);

// Slots are whole cache lines.
std::size_t rounded_slot_bytes(std::size_t slot_bytes);

}  // namespace hvd
