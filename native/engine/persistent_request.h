// Persistent requests (MPI 4: MPI_Allreduce_init): a small sum of all ranks that is called under
// one name again and again. What follows from the request alone is found out once; then a call that
// meets all others on the fast path (fast_path_negotiation.h) needs no task, no handle and no
// memory. Whatever is not quite so is asked for like any other operation.
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
  // Whether one hand-over, or this rank alone, carries it out. Progress-lock owner only.
  std::optional<bool> fits;
};

// Null: it has no name, or is no small sum of host memory. The request is valid.
std::shared_ptr<PersistentRequest> make_persistent(const Request& request,
                                                   std::shared_ptr<const Group> everybody);

// Progress-lock owner only, from here on.
bool fits(const Parts& parts, PersistentRequest& request);
// All ranks have agreed on it, this one in a call that began at since_ns. half: of the fast path's
// memory, where all have put their data; negative: this rank is the only one. Counters and trace
// have it as any other operation. When it ended.
Result<std::int64_t> perform(const Parts& parts, const PersistentRequest& request,
                             const std::vector<Operand>& operands, int half, std::int64_t since_ns);

}  // namespace hvd
