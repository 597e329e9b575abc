// Persistent requests (MPI 4: MPI_Allreduce_init): a small sum of all ranks that is called under
// one name repeatedly. Everything that follows from the request alone is computed once; a call that
// meets all other ranks on the fast path (fast_path_negotiation.h) then needs no task, no handle
// and no memory. Otherwise it is enqueued like any other operation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/backend/plan.h"
#include "engine/execution/executor.h"
#include "engine/message/request.h"

namespace hvd {

struct PersistentRequest {
  Request request;
  std::string text;                    // as the fast path compares it
  std::shared_ptr<const Group> group;  // all ranks
  Reduction reduction;
  std::int64_t bytes = 0;
  // True if one exchange, or this rank alone, executes it. Progress-lock owner only.
  std::optional<bool> fits;
};

// The request is valid. nullptr: it has no name, or is not a small sum in host memory.
std::shared_ptr<PersistentRequest> make_persistent(const Request& request,
                                                   std::shared_ptr<const Group> all_ranks);

// Progress-lock owner only, from here on.
bool fits(const Parts& parts, PersistentRequest& request);
// Execute a request that all ranks have agreed on, this one in a call that began at since_ns;
// return the time at which it ended. half: the half of the fast path's memory that holds all data;
// negative: there is only one rank. Counters and trace treat it like any other operation.
Result<std::int64_t> perform(const Parts& parts, const PersistentRequest& request,
                             const std::vector<Operand>& operands, int half, std::int64_t since_ns);

}  // namespace hvd
