// Passes of one agreed reduction through the backend: its tensors by element type (and by shared
// region), with stand-ins for the tensors of a rank that has joined.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collective/backend/group.h"
#include "collective/backend/plan.h"
#include "engine/execution/buffer.h"
#include "engine/execution/handles.h"
#include "engine/execution/regions.h"
#include "engine/message/request.h"
#include "tensor/reduce.h"

namespace hvd {

// One response with this rank's tasks for it.
struct Work {
  Response response;
  std::vector<TaskPtr> tasks;  // in the order of the names; null: this rank has not asked
  std::int64_t bytes = 0;      // that it moves on one rank, about
  std::int64_t agreed_ns = 0;  // 0: carried out at once

  // What was asked for under name number i: null where neither this rank nor rank 0 tells.
  const Request* request(std::size_t i) const {
    if (tasks[i] != nullptr) return &tasks[i]->request;
    return i < response.absent.size() ? &response.absent[i] : nullptr;
  }
  // This rank's, of its first tensor; kAnyDevice: it stands in for others on theirs.
  int device() const;
};

// What goes through the backend in one call. All ranks cut alike.
struct Pass {
  Dtype dtype;
  std::int64_t region;  // kPrivate: not in shared memory
  std::vector<Operand> operands;
  std::vector<bool> stands_in;  // by operand; empty: none does
};

// Without its dtype.
Reduction reduction_of(const Request& request, const Group& group);

// In the order in which types and regions appear. The stand-ins lie in `scratch`, by `placement`.
// kUnavailable: no memory for them.
Result<std::vector<Pass>> passes_of(const Work& work, bool shared, const Placement& placement,
                                    Buffer& scratch);

// From this rank's copy of the region to the one of every member. Empty: the group spans hosts, or
// the region is gone (then nobody has it), or it is on devices and the group is not all ranks, who
// share it; the operands are moved like private ones.
std::vector<std::ptrdiff_t> offsets_of(const Regions& regions, const Topology& topology,
                                       const Group& group, std::int64_t region);

// Where a stand-in takes part, the factor on the inputs must not change it: it is applied to this
// rank's own inputs here, where their results will be. (There are none on a device.)
void prescale_own(Pass& pass, Reduction& reduction);

}  // namespace hvd
