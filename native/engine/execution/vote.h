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
#pragma once

#include <cstdint>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "engine/execution/handles.h"
#include "engine/execution/passes.h"

namespace hvd {

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
