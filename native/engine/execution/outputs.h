// Outputs, and the vote on the memory for them. Convert a response and a task to the backend's
// arguments (shapes, memory, shares) for operations whose result size depends on all ranks. The
// memory that they need is computed from the agreement alone, so every rank can compute it for
// every other rank.
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

// Vote on memory: check that every rank has memory for an operation's result before data move.
//
// Reason. The result size of an allgather or alltoall depends on all ranks, so a rank detects that
// it has no memory only when all have agreed to execute the operation and its peers are about to
// send. It cannot skip the operation, because the data would stay in its links. So the
// ranks vote first: if one has no memory, the operation fails on all of them with one error that
// names that rank, no data have moved, and the engine continues.
//
// Cost. One reduction of four bytes over the group, the cost of the smallest allreduce. Results of
// at most kVotedBytes are not voted on: if those do not fit there is no memory for anything, and
// the engine ends. (Memory of a device, which the frontend allocates completely, is always voted
// on.) Ranks decide whether to vote from the agreement only, never from their own memory.
//
// Limit. The kernel may promise more memory than exists (overcommit): a rank that is killed when it
// touches the pages counts as a dead rank.

constexpr std::int64_t kVotedBytes = 1'048'576;

// The first member of the group that failed, the same on every member; the number of members: none
// failed.
Result<int> first_failing(Backend& backend, const Group& group, bool failed);

// backend: of the host. mine: kUnavailable if this rank lacks memory for the work. Returns nullptr
// if no rank does, else the error of the work, the same on every member. A failed status: the
// engine cannot continue.
Result<Ending> vote_on_memory(Backend& backend, const Work& work, const Group& group,
                              const Status& mine);

}  // namespace hvd
