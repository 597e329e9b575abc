// The data of an operation that is given before it is agreed on: what may go so, and how; into
// slots of the links between hosts (eager/eager_rounds.h), or within a host into the memory of the
// fast path (transport/shm/fast_path.h).
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "engine/execution/executor.h"
#include "tensor/slot_store.h"
#include "transport/link/eager_links.h"

namespace hvd {

// Host memory of one type, small enough that everybody sends everything to everybody, with nothing
// to scale before the sum: what has been written by then is written there only, so the operation
// can begin anew. The same on all ranks that ask for the same.
bool may_be_given(const Parts& parts, const Request& request, std::size_t most_bytes);
// And there is room on every link.
bool may_send_eagerly(const Parts& parts, const Task& task);
void send_eagerly(const Parts& parts, const Task& task, const EagerTag& tag);
// All have sent; the slots are next on every link.
Status allreduce_eagerly(const Parts& parts, const Group& group,
                         const std::vector<Operand>& operands, const Reduction& reduction);

bool may_be_put_beside(const Parts& parts, const Request& request);
// `store`: for what is written there.
void put_beside(const Parts& parts, const std::vector<Operand>& operands, Dtype dtype, int half,
                SlotStore& store);
// All have put theirs there.
Status allreduce_beside(const Parts& parts, const Group& group,
                        const std::vector<Operand>& operands, const Reduction& reduction, int half);

}  // namespace hvd
