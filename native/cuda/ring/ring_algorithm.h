// Algorithms that the ring of a group can use, from what its members told each other: a pure
// function, so all know the same.
//   slices       short kernels in stream order, nothing spins (ring.h): always possible
//   persistent   one kernel per rank that stays until all is done (ring.cuh). Kernels that wait for
//                each other must run at the same time: those of different devices do, those of
//                threads of one process too where there is room for all their blocks; those of
//                processes that share a device take turns, unless MPS makes them one. A driver that
//                ends long kernels (a display hangs on the device) would end those that wait
// auto: both where both are possible, and a self-test finds the faster one (self_test.h).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

struct RingAlgorithms {
  bool slices = true;
  unsigned blocks = 0;  // of the persistent kernel on every rank; 0: it cannot be
};

// The same on all members. kInvalidArgument: HVD_GPU_RING=persistent where that cannot be, and why.
Result<RingAlgorithms> ring_algorithms(const std::vector<PeerInfo>& members);

}  // namespace hvd::cuda
