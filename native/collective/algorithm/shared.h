// Tensors in the shared heap: the owner of a slice reads it from all members' memory and writes the
// result to all. Nothing is copied; one exchange at the end notifies all members that all slices
// are done. All inputs are known to be ready from the preceding agreement.
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

// The member of group rank p has every operand at out + offsets[p], as this process sees it.
Status shared(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const std::vector<std::ptrdiff_t>& offsets, const Reduction& reduction);

}  // namespace hvd
