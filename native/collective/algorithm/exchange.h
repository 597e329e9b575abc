// Exchange: every member sends to all members: alltoall, and allgather with the same data for all.
// Plans are in bytes; chunk p is sent to group rank p or received from it. Sender and receiver
// split alike, and empty pieces are not sent.
#pragma once

#include "collective/backend/communicator_context.h"
#include "collective/backend/plan.h"

namespace hvd {

// Chunk p of `out` is sent to group rank p; chunk p of `in` is received from it. Own chunks are
// ignored.
Status exchange(CommunicatorContext& context, const Plan& out, const Plan& in);
// The own chunk is sent to all; chunk p is received from group rank p.
Status exchange_same(CommunicatorContext& context, const Plan& plan);

}  // namespace hvd
