// Data that are written before their operation is agreed on: into slots of the links between hosts
// (eager/eager_rounds.h), or within a host into the memory of the fast path
// (transport/shm/fast_path.h).
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "engine/execution/executor.h"
#include "tensor/slot_store.h"
#include "transport/link/link.h"

namespace hvd {

// True for host memory of one dtype, small enough for an all-to-all exchange, without a prescale
// factor: nothing but slots is written, so that the operation can still be executed from the start.
// The same on all ranks with the same request.
bool may_be_sent_early(const Parts& parts, const Request& request, std::size_t most_bytes);
// may_be_sent_early(), and there is room on every link.
bool may_send_eagerly(const Parts& parts, const Task& task);
void send_eagerly(const Parts& parts, const Task& task, const EagerTag& tag);
// All ranks have sent; the slots are next on every link.
Status allreduce_eagerly(const Parts& parts, const Group& group,
                         const std::vector<Operand>& operands, const Reduction& reduction);

bool may_be_put_beside(const Parts& parts, const Request& request);
// store: writes the data.
void put_beside(const Parts& parts, const std::vector<Operand>& operands, Dtype dtype, int half,
                SlotStore& store);
// All ranks have written their data.
Status allreduce_beside(const Parts& parts, const Group& group,
                        const std::vector<Operand>& operands, const Reduction& reduction, int half);

}  // namespace hvd
