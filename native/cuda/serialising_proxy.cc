#include "cuda/serialising_proxy.h"

namespace hvd::cuda {

void Gate::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
}

template <typename Call>
Status Gate::pass(const Call& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return Status::make(Code::kShutdown, "the engine has ended", "cuda/gate");
  return call(*backend_);
}

Status Gate::allreduce(const Team& team, const std::vector<Operand>& operands,
                       const Reduction& reduction) {
  return pass([&](Backend& to) { return to.allreduce(team, operands, reduction); });
}

Status Gate::allreduce_shared(const Team& team, const std::vector<Operand>& operands,
                              const std::vector<std::ptrdiff_t>& offsets,
                              const Reduction& reduction) {
  return pass([&](Backend& to) { return to.allreduce_shared(team, operands, offsets, reduction); });
}

Status Gate::broadcast(const Team& team, const std::vector<Operand>& operands, int root_place) {
  return pass([&](Backend& to) { return to.broadcast(team, operands, root_place); });
}

Status Gate::allgather(const Team& team, const std::vector<Gather>& tensors) {
  return pass([&](Backend& to) { return to.allgather(team, tensors); });
}

Status Gate::alltoall(const Team& team, const Exchange& exchange) {
  return pass([&](Backend& to) { return to.alltoall(team, exchange); });
}

Status Gate::reducescatter(const Team& team, const std::vector<Scatter>& tensors,
                           const Reduction& reduction) {
  return pass([&](Backend& to) { return to.reducescatter(team, tensors, reduction); });
}

}  // namespace hvd::cuda
