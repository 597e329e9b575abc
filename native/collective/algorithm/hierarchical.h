// Allreduce on a group that spans hosts: within each host, between the hosts, within each host.
//   worker   of a slice on a host: the member that works on that slice there. Where every host has
//            as many members as the others it is the one with the owner's number within its host,
//            so that all of them work and all of their connections carry something; else the first
//            of the host works on everything.
//   part     what a host's members give together for a slice, folded by its worker
//   home     of a slice: its owner's host, whose worker folds the parts of all hosts
// Five stages: inputs to the workers of the host; parts home; results to the other hosts' workers;
// results of other hosts to the members here; copy out. A slot carries what one member has for
// another of all slices of a batch, one after the other. Between many hosts, where that would be
// many small messages, parts and results go round a torus of workers instead (torus.h).
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/backend/plan.h"

namespace hvd {

// Who works on what, the same on all ranks.
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
  std::size_t segment_bytes;  // of a slot, how much is filled at a time
  int torus_hosts;            // from how many hosts on they form a torus
};

// Needs an order by host.
Status hierarchical(Mesh& mesh, CommunicatorContext& context, Order& order,
                    const std::vector<Operand>& operands, const Reduction& reduction,
                    const HierarchyRules& rules);

}  // namespace hvd
