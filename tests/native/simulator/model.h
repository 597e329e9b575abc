// What a virtual cluster and a virtual step cost.
//   alpha    the way of a message from one host to another, ns
//   beta     per byte on a host's link, ns; local_beta: between ranks of a host
//   o        the CPU of one rank per message that it sends or receives, ns; o_byte: and per byte of
//   it
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvd::sim {

struct Costs {
  double alpha = 5000;
  double beta = 0.08;        // 100 Gbit/s
  double local_beta = 0.05;  // 20 GB/s
  double o = 1000;
  double o_byte = 1;
  double ask = 300;  // one request of the user
  int ranks_per_host = 8;
  double segment = 128 << 10;    // bytes that a member folds at a time: collective/cpu_backend.cc
  std::size_t torus_hosts = 33;  // from so many hosts on they form a torus: collective/select.h
};

enum class Algorithm { kRing, kHierarchical, kDirect };

// When each rank is done with an allreduce of so many bytes, given when each began; step by step,
// as the core does it: a ring of 2 (n - 1) steps over ranks; or slices within each host, between
// hosts an exchange of parts and then of results, or a torus, and slices again; or everything from
// everybody to everybody.
std::vector<double> finish(Algorithm algorithm, const Costs& costs, std::vector<double> begin,
                           std::int64_t bytes);

// The least time that the algorithm can take, all ranks beginning together.
double bound(Algorithm algorithm, const Costs& costs, int ranks, std::int64_t bytes);

}  // namespace hvd::sim
