// Each member owns a slice: it gets that slice from everybody, folds it and sends the result to
// everybody. Every element is copied in once and out once; all but the fold is plain copying.
//   input    what a slot carries to the owner: a segment of its slice, prescaled
//   result   what a slot carries back
// Slots (pipeline.h): with lags of 0, 1, 2 a link carries input(b), result(b - 1), input(b + 1),
// ... and up to four of them may be under way at once; without lags two.
#pragma once

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

enum class Results { kToAll, kToOwner };  // kToOwner: reducescatter

// Chunk o of the plan is what group rank o owns.
Status slices(CommunicatorContext& context, Order& order, const Plan& plan,
              const Reduction& reduction, Results results);

}  // namespace hvd
