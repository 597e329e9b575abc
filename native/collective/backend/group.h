// Words.
//   group    the ranks that carry an operation out together: those of one
//   process set, in order place   a rank's number within its group
#pragma once

#include <cstddef>
#include <vector>

namespace hvd {

struct Group {
  int id = 0;              // of the process set; 0: all ranks
  std::vector<int> ranks;  // of the engine, ascending
  int place = 0;           // this rank's

  int size() const { return static_cast<int>(ranks.size()); }
  // The rank `steps` places to the right, round the end; negative: to the left.
  int rank_at(int steps) const {
    const int n = size();
    return ranks[static_cast<std::size_t>(((place + steps) % n + n) % n)];
  }
};

}  // namespace hvd
