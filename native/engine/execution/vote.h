// Whether every rank has the memory that an operation's result needs: voted on before data moves.
//
// Why. How large the result of an allgather or alltoall is, only the ranks together know, so a rank
// finds out that it has no memory for it when all have agreed to carry the operation out, and its
// peers are about to send. It cannot stay away: what they send would lie in its links for ever. So
// the ranks tell each other first; if one has none the operation fails on all of them, with one
// error that names that rank, nothing has moved, and the engine lives.
//
// What it costs. One reduction of four bytes over the group: what the smallest allreduce costs, 0.6
// us between two ranks over shared memory, a round trip over sockets. Even so not for results of at
// most kVotedBytes: where those do not fit there is no memory for anything, and the engine ends.
// (Of a device's memory, which the frontend takes whole, every byte is voted on.) Whether they vote
// the ranks decide from what they have agreed on, never from what they have.
//
// What it does not see. The kernel may promise more memory than there is (overcommit): a rank that
// is killed when it touches the pages is a rank that died.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "collective/backend/group.h"
#include "engine/execution/handles.h"
#include "engine/execution/passes.h"

namespace hvd {

constexpr std::int64_t kVotedBytes = 1'048'576;

// The first member of the group that says so, on every member alike; the number of members: none
// does.
Result<int> first_failing(Backend& backend, const Group& group, bool failed);

// backend: the host's. mine: kUnavailable when this rank lacks memory for the work. Null: nobody
// does; else how the work ends, on every member alike. A failure: the engine cannot go on.
Result<Ending> vote_on_memory(Backend& backend, const Work& work, const Group& group,
                              const Status& mine);

}  // namespace hvd
