// The order of every fold, in one place (the rule is at the head of backend.h).
//   part   the partial result of the members of one host, rounded to the dtype; likewise that of
//          the hosts of a row, if they form a grid
#pragma once

#include <cstddef>
#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/host_grid.h"
#include "tensor/reduce.h"

namespace hvd {

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
