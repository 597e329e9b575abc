// Outputs: convert a response and a task to the backend's arguments (shapes, memory, shares) for
// operations whose result size depends on all ranks. The memory that they need is computed from the
// agreement alone, so every rank can compute it for every other rank (vote.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "engine/execution/handles.h"
#include "engine/execution/passes.h"
#include "engine/message/request.h"

namespace hvd {

// Check that the sizes of an agreement match this rank's requests: their number, none negative or
// larger than memory, and this rank's own as requested. Rank 0 is not trusted here, because its
// message decides how much is copied.
Status sizes_fit(const Work& work, const Group& group);

// Bytes of the whole operation, the same on every rank.
std::int64_t whole_bytes(const Work& work, const Group& group);
// Bytes that the core must allocate on that member before it can execute the work.
std::int64_t needed_bytes(const Work& work, const Group& group, int group_rank);
// The maximum over all members.
std::int64_t most_needed_bytes(const Work& work, const Group& group);

// Allgather of all tensors of all tasks. placement: of the results, which are added to the tasks.
// kUnavailable: no memory.
Result<std::vector<Gather>> gathers_of(const Work& work, const Group& group,
                                       const Placement& placement);

// rows: from group rank p to group rank q at [p * n + q]. Sets the result and the received rows of
// the task. kUnavailable: no memory.
Result<Exchange> exchange_of(Task& task, const Group& group, const std::vector<std::int64_t>& rows,
                             const Placement& placement);

// Reducescatter. Group rank p receives rows / n rows, the first rows % n members one more.
Scatter scatter_of(const Task& task, std::size_t index, const Group& group);
// Allocate memory for this member's shares where the operands have none. Their size does not depend
// on other ranks, so this is done before the request is sent: kUnavailable concerns the caller
// only.
Status find_shares(Task& task, const Group& group, const Placement& placement);

}  // namespace hvd
