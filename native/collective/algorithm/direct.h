// Everybody sends its whole input to everybody and folds everything itself: one hand-over. For
// operations that fit into one slot.
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

Status direct(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
              const Reduction& reduction);
// The same where everybody's input has been sent already: without factors before the sum.
Status direct_sent(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                   const Reduction& reduction);
// The same where context.seen() says where everybody's input is.
void direct_fold(CommunicatorContext& context, Order& order, const std::vector<Operand>& operands,
                 const Reduction& reduction);

}  // namespace hvd
