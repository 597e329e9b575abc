// Grid of hosts, for a torus allreduce: from so many hosts on a ring of all of them would take too
// many steps. A host is known by its number within the group; rows are of consecutive numbers.
#pragma once

namespace hvd {

struct HostGrid {
  int rows = 1;
  int columns = 1;

  bool is_line() const { return rows == 1; }
  int row_of(int host) const { return host / columns; }
  int column_of(int host) const { return host % columns; }
  int host_at(int row, int column) const { return row * columns + column; }
};

// The most nearly square one. A line: fewer hosts than `from`, or a prime number of them.
inline HostGrid host_grid(int hosts, int from) {
  HostGrid grid{1, hosts};
  if (hosts < from) return grid;
  for (int rows = 2; rows * rows <= hosts; ++rows) {
    if (hosts % rows == 0) grid = {rows, hosts / rows};
  }
  return grid;
}

}  // namespace hvd
