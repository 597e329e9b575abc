// Algorithms that the ring of a group can use, from the exchanged peer infos: a pure function, so
// all members compute the same.
//   slices       short kernels in stream order, nothing spins (ring.h): always possible
//   persistent   one kernel per rank that runs until the operation is done (ring.cuh). Kernels that
//                wait for each other must run concurrently: those of different devices do, and
//                those of threads of one process if there is room for all their blocks. Those of
//                processes that share a device may not: they are time-sliced, and with MPS nothing
//                reserves room for all of them. Processes outside of these ranks' groups count,
//                and so do ranks of the host whose device is not known. A driver that ends long
//                kernels (of a device with a display) would end waiting ones
// auto: both if each rank has its own device, and a self-test finds the faster one (self_test.h).
// Threads that share a device use slices: measured on an H100, these reach 95 to 100 % of the
// memory's bandwidth and a persistent ring 27 to 46 %, and a self-test on an idle device shows
// nothing about one that computes.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device/peer_info.h"

namespace hvd::cuda {

struct RingAlgorithms {
  bool slices = true;
  unsigned blocks = 0;  // of the persistent kernel on every rank; 0: impossible
};

// The same on all members. kInvalidArgument: HVD_GPU_RING=persistent is impossible, with the
// reason.
Result<RingAlgorithms> ring_algorithms(const std::vector<PeerInfo>& members);

}  // namespace hvd::cuda
