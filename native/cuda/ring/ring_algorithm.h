// Algorithms that the ring of a group can use, from what its members told each other: a pure
// function, so all know the same.
//   slices       short kernels in stream order, nothing spins (ring.h): always possible
//   persistent   one kernel per rank that stays until all is done (ring.cuh). Kernels that wait for
//                each other must run at the same time: those of different devices do, those of
//                threads of one process too where there is room for all their blocks. Those of
//                processes that share a device may never: they take turns, and where MPS lets them
//                run together nothing keeps room for all of them. A process counts that is in none
//                of these ranks' groups, and so does a rank of the host whose device is not known.
//                A driver that ends long kernels (a display hangs on the device) would end those
//                that wait
// auto: both where each rank has a device of its own, and a self-test finds the faster one
// (self_test.h). Threads that share a device go in slices: measured on an H100, these reach 95 to
// 100 % of what its memory allows and a persistent ring 27 to 46 %, and a self-test on a device
// that nobody else uses shows nothing of one that computes.
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
