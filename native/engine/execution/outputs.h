// Outputs: from a response and a task to what the backend is asked to do, for the operations whose
// results only the ranks together know the size of: shapes, memory, shares. What they need is
// computed from the agreement alone, so every rank knows it of every other (vote.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "collective/backend/group.h"
#include "engine/execution/handles.h"
#include "engine/execution/passes.h"
#include "engine/message/request.h"

namespace hvd {

// Whether the sizes that came with an agreement are those of this rank's requests: as many, none
// negative or more than memory can hold, and this rank's own what it has asked with. Rank 0 is not
// trusted to say so: what it sends decides how much is copied here.
Status sizes_fit(const Work& work, const Group& group);

// Of the whole operation, the same on every rank.
std::int64_t whole_bytes(const Work& work, const Group& group);
// What that member needs of memory that the core has to find before it can carry the work out.
std::int64_t needed_bytes(const Work& work, const Group& group, int group_rank);
// Of any member.
std::int64_t most_needed_bytes(const Work& work, const Group& group);

// placement: where results are to be. All tensors of all tasks. The results are added to the tasks.
// kUnavailable: no memory.
Result<std::vector<Gather>> gathers_of(const Work& work, const Group& group,
                                       const Placement& placement);

// rows: from group rank p to group rank q at [p * n + q]. Result and received rows are put into the
// task. kUnavailable: no memory.
Result<Exchange> exchange_of(Task& task, const Group& group, const std::vector<std::int64_t>& rows,
                             const Placement& placement);

// Of a reducescatter. Group rank p gets rows / n rows, the first rows % n members one more.
Scatter scatter_of(const Task& task, std::size_t index, const Group& group);
// Finds memory for this member's shares where the operands name none, and names it there. How large
// they are this rank knows by itself, so that is done before anybody else hears of the operation:
// kUnavailable is the caller's own.
Status find_shares(Task& task, const Group& group, const Placement& placement);

}  // namespace hvd
