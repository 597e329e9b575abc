// The data of an operation that is sent before it is agreed on (eager/eager_rounds.h): what may go
// so, and how.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "engine/execution/executor.h"
#include "transport/link/eager_links.h"

namespace hvd {

// Host memory of one type, small enough that everybody sends everything to everybody, with nothing
// to scale before the sum: what has been written by then is written into slots only, so the
// operation can begin anew. And there is room on every link.
bool may_send_eagerly(const Parts& parts, const Task& task);
void send_eagerly(const Parts& parts, const Task& task, const EagerTag& tag);
// All have sent; the slots are next on every link.
Status allreduce_eagerly(const Parts& parts, const Group& group,
                         const std::vector<Operand>& operands, const Reduction& reduction);

}  // namespace hvd
