// Everybody sends something to everybody: alltoall, and allgather with the same for all. Plans in
// bytes; chunk p is what goes to group rank p or comes from it. Sender and receiver cut alike, and
// what is empty is not sent.
#pragma once

#include "collective/backend/communicator_context.h"
#include "collective/backend/plan.h"

namespace hvd {

// Chunk p of `out` goes to group rank p; chunk p of `in` comes from there. Own chunks are not
// looked at.
Status exchange(CommunicatorContext& context, const Plan& out, const Plan& in);
// The own chunk goes to all; chunk p comes from group rank p.
Status exchange_same(CommunicatorContext& context, const Plan& plan);

}  // namespace hvd
