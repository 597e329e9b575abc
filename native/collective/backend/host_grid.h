// Grid of hosts for a torus allreduce, because a ring of many hosts would take too many steps. A
// host is identified by its number within the group; rows have consecutive numbers.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace hvd {

struct HostGrid {
  int rows = 1;
  int columns = 1;

  bool is_line() const { return rows == 1; }
  int row_of(int host) const { return host / columns; }
  int column_of(int host) const { return host % columns; }
  int host_at(int row, int column) const { return row * columns + column; }
  // The hosts of one.
  std::vector<int> row(int number) const {
    std::vector<int> hosts(static_cast<std::size_t>(columns));
    std::iota(hosts.begin(), hosts.end(), host_at(number, 0));
    return hosts;
  }
  std::vector<int> column(int number) const {
    std::vector<int> hosts;
    hosts.reserve(static_cast<std::size_t>(rows));
    for (int row = 0; row < rows; ++row) hosts.push_back(host_at(row, number));
    return hosts;
  }
};

// The most nearly square grid. A line if there are fewer hosts than `from`, or a prime number.
inline HostGrid host_grid(int hosts, int from) {
  HostGrid grid{1, hosts};
  if (hosts < from) return grid;
  for (int rows = 2; rows * rows <= hosts; ++rows) {
    if (hosts % rows == 0) grid = {rows, hosts / rows};
  }
  return grid;
}

}  // namespace hvd
