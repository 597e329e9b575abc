// Operations on host memory: picks the algorithm and hands it the crew, the order and a plan.
#pragma once

#include <memory>
#include <vector>

#include "collective/backend/backend.h"
#include "collective/backend/communicator_context.h"
#include "collective/backend/order.h"
#include "collective/select.h"

namespace hvd {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(Mesh& mesh, const AlgorithmOptions& options = {});

  Status allreduce(const Team& team, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status allreduce_shared(const Team& team, const std::vector<Operand>& operands,
                          const std::vector<std::ptrdiff_t>& offsets,
                          const Reduction& reduction) override;
  Status broadcast(const Team& team, const std::vector<Operand>& operands, int root_place) override;
  Status allgather(const Team& team, const std::vector<Gather>& tensors) override;
  Status alltoall(const Team& team, const Exchange& exchange) override;
  Status reducescatter(const Team& team, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return last_; }

  // Between operations, the same on all ranks.
  void set_options(const AlgorithmOptions& options);

 private:
  // What over: for the names of algorithms.
  enum Carrier { kMemory, kSockets, kPlugin };
  enum Way { kDirect, kSlices, kRing, kHierarchical, kShared, kStar, kChain, kPairs };
  struct Known {
    Known(Mesh& mesh, const Team& team, bool by_host) : crew(mesh, team), order(crew, by_host) {}
    Crew crew;
    Order order;
    Carrier carrier = kMemory;
  };

  Known& known(const Team& team);
  Known& remember(const Team& team);
  void used(const Known& of, Way way);
  std::size_t segment_bytes(const Crew& crew) const;
  Way way_of(const Crew& crew, std::size_t bytes, std::size_t width) const;

  Mesh& mesh_;
  AlgorithmOptions options_;
  std::vector<std::unique_ptr<Known>> known_;  // teams met so far
  const char* last_ = "LOCAL";
};

}  // namespace hvd
