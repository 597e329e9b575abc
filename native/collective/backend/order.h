// Grid of hosts for a torus allreduce, because a ring of many hosts would take too many steps. A
// host is identified by its number within the group; rows have consecutive numbers.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "collective/backend/communicator_context.h"
#include "tensor/reduce.h"

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

// The order of every fold, in one place (the rule is at the head of backend.h).
//   part   the partial result of the members of one host, rounded to the dtype; likewise that of
//          the hosts of a row, if they form a grid

class Order {
 public:
  // by_host: fold host by host if the context has several hosts; else over the members in order.
  // With at least `grid_from` hosts they form a grid.
  Order(const CommunicatorContext& context, bool by_host, int grid_from);

  // Fold all inputs of (a piece of) slice `slice`, indexed by group rank.
  void fold(const Reduction& reduction, int slice, void* out, void* const* copies,
            std::size_t n_copies, const std::byte* const* inputs, std::size_t count);
  // Its two halves: one host's part, unscaled; then all parts, indexed by host (with a grid: for a
  // block).
  void fold_host(const Reduction& reduction, int slice, int host, void* out,
                 const std::byte* const* inputs, std::size_t count);
  void fold_hosts(const Reduction& reduction, int slice, void* out, void* const* copies,
                  std::size_t n_copies, const std::byte* const* parts, std::size_t count);

 private:
  void fold_grid(const Reduction& reduction, int home, void* out, void* const* copies,
                 std::size_t n_copies, const std::byte* const* parts, std::size_t count);

  HostGrid grid_;
  std::vector<std::vector<int>> groups_;  // members, by host; one group: flat
  std::vector<int> group_of_;             // by group rank
  std::vector<const void*> row_;          // inputs in the order in which they are folded
  std::vector<const std::byte*> shifted_, parts_;
  std::vector<std::byte> scratch_;  // one block of a part per host, and per row of a grid
};

}  // namespace hvd
