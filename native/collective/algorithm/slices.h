// Slices: each member owns a slice, receives it from all members, folds it and sends the result to
// all. Every element is copied in once and out once; everything but the fold is plain copying.
//   input    a slot's contents on the way to the owner: a segment of its slice, prescaled
//   result   a slot's contents on the way back
// Slots (pipeline.h): with lags of 0, 1, 2 a link carries input(b), result(b - 1), input(b + 1),
// ... and up to four of them may be in flight at once; without lags two.
#pragma once

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

enum class Results { kToAll, kToOwner };  // kToOwner: reducescatter

// Chunk o of the plan belongs to group rank o.
Status slices(CommunicatorContext& context, Order& order, const Plan& plan,
              const Reduction& reduction, Results results);

}  // namespace hvd
