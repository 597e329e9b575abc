// Passes of one agreed reduction through the backend: its tensors by element type (and by shared
// region), with substitutes for the tensors of a rank that has joined.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
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
  std::vector<TaskPtr> tasks;  // in the order of the names; nullptr: not requested by this rank
  std::int64_t bytes = 0;      // moved on one rank, approximately
  std::int64_t agreed_ns = 0;  // 0: executed at once

  // The request of name number i; nullptr if neither this rank nor rank 0 has it.
  const Request* request(std::size_t i) const {
    if (tasks[i] != nullptr) return &tasks[i]->request;
    return i < response.absent.size() ? &response.absent[i] : nullptr;
  }
  // The device of this rank's first tensor; kAnyDevice: this rank substitutes for others.
  int device() const;
};

// The operands of one backend call. All ranks split alike.
struct Pass {
  Dtype dtype;
  std::int64_t region;  // kPrivate: not in shared memory
  std::vector<Operand> operands;
  std::vector<bool> stands_in;  // by operand; empty: none
};

// Without its dtype.
Reduction reduction_of(const Request& request, const Group& group);

// In the order in which types and regions appear. Substitutes are in `scratch`, by `placement`.
// kUnavailable: no memory for them.
Result<std::vector<Pass>> passes_of(const Work& work, bool shared, const Placement& placement,
                                    Buffer& scratch);

// Offsets from this rank's copy of the region to the copy of every member. Empty: the group spans
// hosts, or the region is released (then on all ranks), or it is on devices and the group is not
// all ranks, which share it; the operands are then moved like private ones.
std::vector<std::ptrdiff_t> offsets_of(const Regions& regions, const Topology& topology,
                                       const Group& group, std::int64_t region);

// If a substitute takes part, the prescale factor must not change it: apply the factor to this
// rank's own inputs here, in their outputs. (Devices have no substitutes.)
void prescale_own(Pass& pass, Reduction& reduction);

}  // namespace hvd
