// Choice of a group's backend from the exchanged peer infos: a pure function, so all members choose
// alike.
//   ring     our own, over memory that the members map: one host, every device reachable from every
//            other (or the same one), word operations in streams
//   nccl     one device per rank, the same NCCL on all: between hosts, and where devices of one
//            host do not reach each other
//   staged   over host memory: always possible
// auto: the possible ones in this order; if the first two are possible, they are timed against each
// other (group_init.h). prefer-nccl: NCCL first, without timing; Horovod's
// HOROVOD_GPU_OPERATIONS=NCCL means this. ring, nccl and staged mean that one, or an error that
// names the rank and the reason.
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

// The reasons why other backends are not possible, unless staging was requested.
std::vector<std::string> why_staged(const std::vector<PeerInfo>& members);

}  // namespace hvd::cuda
