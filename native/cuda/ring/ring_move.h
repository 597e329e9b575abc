// Operations that move bytes between devices: each member packs data for others into its half,
// where they read it. Not for groups of one.
//
// In bytes per rank: broadcast of S: the root reads and writes S, the others read S (over the
// root's link, n - 1 times) and write S. Allgather and alltoall: what a rank sends is read and
// written once more than the copy from device to device would.
#pragma once

#include <vector>

#include "collective/backend/backend.h"
#include "cuda/ring/ring.h"

namespace hvd::cuda {

Status ring_broadcast(Ring& ring, const std::vector<Operand>& operands, std::size_t root);
Status ring_allgather(Ring& ring, const std::vector<Gather>& tensors);
Status ring_alltoall(Ring& ring, const Exchange& exchange);

}  // namespace hvd::cuda
