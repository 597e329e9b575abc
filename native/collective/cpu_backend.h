// Backend for host memory: selects the algorithm and passes it the context, the order and a plan.
#pragma once

#include <vector>

#include "collective/backend/backend.h"
#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/select.h"

namespace hvd {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(Mesh& mesh, const AlgorithmOptions& options = {});

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                          const std::vector<std::ptrdiff_t>& offsets,
                          const Reduction& reduction) override;
  Status broadcast(const Group& group, const std::vector<Operand>& operands,
                   int group_root) override;
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override;
  Status alltoall(const Group& group, const Exchange& exchange) override;
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return last_; }

  // True if allreduce() would need a single exchange: the inputs may then be sent to all members
  // before the operation is agreed on, if the links support eager slots, and allreduce_sent() folds
  // them.
  bool is_single_exchange(const Group& group, std::size_t count, Dtype dtype);
  Status allreduce_sent(const Group& group, const std::vector<Operand>& operands,
                        const Reduction& reduction);
  // The same for inputs in memory that all ranks share; the links are not used.
  template <typename InputOf>
  Status allreduce_shared_inputs(const Group& group, const std::vector<Operand>& operands,
                                 const InputOf& input_of, const Reduction& reduction) {
    Known& with = known(group);
    for (std::size_t p = 0; p < group.ranks.size(); ++p)
      with.context.seen()[p] = input_of(group.ranks[p]);
    return fold_seen(with, operands, reduction);
  }

  // Between operations, the same on all ranks.
  void set_options(const AlgorithmOptions& options);

 private:
  // The carrier, for the names of algorithms.
  enum Carrier { kMemory, kSockets, kPlugin };
  enum Pattern { kDirect, kSlices, kRing, kHierarchical, kShared, kStar, kChain, kPairs };
  struct Known {
    Known(Mesh& mesh, const Group& group, const AlgorithmOptions& options)
        : context(mesh, group),
          order(context, options.hierarchical_allreduce, options.torus_hosts) {}
    CommunicatorContext context;
    Order order;
    Carrier carrier = kMemory;
  };

  Status fold_seen(Known& with, const std::vector<Operand>& operands, const Reduction& reduction);
  Known& known(const Group& group);
  Known& remember(const Group& group);
  void used(const Known& of, Pattern pattern);
  std::size_t segment_bytes(const CommunicatorContext& context) const;
  Pattern pattern_of(const CommunicatorContext& context, std::size_t bytes,
                     std::size_t width) const;

  Mesh& mesh_;
  AlgorithmOptions options_;
  GroupRegistry<Known> known_;
  const char* last_ = "LOCAL";
};

}  // namespace hvd
