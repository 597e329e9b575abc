// The order of every fold, in one place (the rule is at the head of backend.h).
//   part   what the members of one host give together, rounded to the dtype
#pragma once

#include <cstddef>
#include <vector>

#include "collective/backend/communicator_context.h"
#include "tensor/reduce.h"

namespace hvd {

class Order {
 public:
  // by_host: fold host by host where the context has several; else over the members as they come.
  Order(const CommunicatorContext& context, bool by_host);

  // Folds all inputs of (a piece of) slice `slice`, given by group rank.
  void fold(const Reduction& reduction, int slice, void* out, void* const* copies,
            std::size_t n_copies, const std::byte* const* inputs, std::size_t count);
  // The two halves of it: one host's part, unscaled; then all parts, given by host.
  void fold_host(const Reduction& reduction, int slice, int host, void* out,
                 const std::byte* const* inputs, std::size_t count);
  void fold_hosts(const Reduction& reduction, int slice, void* out, void* const* copies,
                  std::size_t n_copies, const std::byte* const* parts, std::size_t count);

 private:
  std::vector<std::vector<int>> groups_;  // members, by host; one group: flat
  std::vector<int> group_of_;             // by group rank
  std::vector<const void*> row_;          // inputs in the order in which they are folded
  std::vector<const std::byte*> shifted_, parts_;
  std::vector<std::byte> scratch_;  // one block of a part per host
};

}  // namespace hvd
