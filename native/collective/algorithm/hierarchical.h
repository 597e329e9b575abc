// Allreduce on a group that spans hosts: within each host, between the hosts, within each host.
//   worker   of a slice on a host: the member that works on that slice there. If all hosts have the
//            same number of members it is the one with the owner's number within its host, so that
//            all members work and all connections are used; otherwise the first member of the host
//            works on everything.
//   part     the partial result of a host's members for a slice, folded by its worker
//   home     of a slice: its owner's host, whose worker folds the parts of all hosts
// Five stages: inputs to the workers of the host; parts home; results to the other hosts' workers;
// results of other hosts to the members here; copy out. A slot carries all slices of a
// batch from one member to another. Between many hosts, where that would be many small messages,
// parts and results travel along a torus of workers instead (torus.h).
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

// The workers of all slices, the same on all ranks.
class Roles {
 public:
  explicit Roles(const CommunicatorContext& context);
  int worker(int host, int slice) const;
  // The slices that a member works on, ascending.
  const std::vector<int>& work_of(int group_rank) const {
    return work_[static_cast<std::size_t>(group_rank)];
  }
  std::size_t most_work() const;

 private:
  const CommunicatorContext& context_;
  bool even_ = true;
  std::vector<int> number_;             // of a member within its host
  std::vector<std::vector<int>> work_;  // by group rank
};

struct HierarchyRules {
  std::size_t segment_bytes;  // bytes of a slot that are filled at a time
  int torus_hosts;            // minimum number of hosts for a torus
};

// Needs an order by host.
Status hierarchical(Mesh& mesh, CommunicatorContext& context, Order& order,
                    const std::vector<Operand>& operands, const Reduction& reduction,
                    const HierarchyRules& rules);

}  // namespace hvd
