// The tree of the negotiation: rank 0 is the root, every rank has at most `fanout` children. With
// at most fanout + 1 ranks it is a star.
#pragma once

#include <algorithm>
#include <vector>

namespace hvd {

constexpr int kDefaultFanout = 64;

inline int parent_of(int rank, int fanout) { return rank == 0 ? -1 : (rank - 1) / fanout; }

inline std::vector<int> children_of(int rank, int size, int fanout) {
  std::vector<int> children;
  const long long first = static_cast<long long>(rank) * fanout + 1;
  for (long long child = first; child < std::min<long long>(first + fanout, size); ++child) {
    children.push_back(static_cast<int>(child));
  }
  return children;
}

}  // namespace hvd
