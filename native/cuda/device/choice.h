// Choice of a group's backend, from what its members told each other: a pure function, so all
// choose alike.
//   ring     our own, over memory that the members map: one host, every device reachable from every
//            other (or the same one), word operations in streams
//   nccl     one device per rank, the same NCCL on all: between hosts, and where devices of one
//            host do not reach each other
//   staged   over host memory: always possible
// auto: what is possible of these, in this order; where both of the first two are, they are timed
// against each other (agreement.h). prefer-nccl: NCCL first, which is not timed then; so Horovod's
// HOROVOD_GPU_OPERATIONS=NCCL is read. ring, nccl and staged mean that one, or an error that says
// which rank cannot, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

enum class BackendKind : std::uint8_t { kRing = 0, kNccl = 1, kStaged = 2 };
const char* name_of(BackendKind kind);  // "ring", "nccl", "staged"

// The candidates, in this order; at least one. The same on all members.
Result<std::vector<BackendKind>> choose(const std::vector<PeerInfo>& members);

// Where nobody has asked for staging: why the other backends are not possible, those that are not.
std::vector<std::string> why_staged(const std::vector<PeerInfo>& members);

}  // namespace hvd::cuda
