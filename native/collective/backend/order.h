// The order of every fold, in one place (the rule is at the head of backend.h).
//   part   what the members of one host give together, rounded to the dtype; so is that of the
//   hosts
//          of a row, where they form a grid
#pragma once

#include <cstddef>
#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/host_grid.h"
#include "tensor/reduce.h"

namespace hvd {

class Order {
 public:
  // by_host: fold host by host where the context has several; else over the members as they come.
  // From `grid_from` hosts on they form a grid.
  Order(const CommunicatorContext& context, bool by_host, int grid_from);

  // Folds all inputs of (a piece of) slice `slice`, given by group rank.
  void fold(const Reduction& reduction, int slice, void* out, void* const* copies,
            std::size_t n_copies, const std::byte* const* inputs, std::size_t count);
  // The two halves of it: one host's part, unscaled; then all parts, given by host (of a grid: of
  // a block).
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
