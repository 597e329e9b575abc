// Direct: every member sends its whole input to all members and folds everything itself: one
// exchange. For operations that fit into one slot.
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

Status direct(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const Reduction& reduction);
// The same for inputs that were sent already: without prescale factors.
Status direct_sent(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                   const Reduction& reduction);
// The same for inputs at the addresses in context.seen().
void direct_fold(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                 const Reduction& reduction);

}  // namespace hvd
