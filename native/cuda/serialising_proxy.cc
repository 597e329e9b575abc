#include "cuda/serialising_proxy.h"

namespace hvd::cuda {

void SerialisingProxy::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
}

template <typename Call>
Status SerialisingProxy::pass(const Call& call) {
  const MutexLock lock(mutex_);
  if (closed_)
    return Status::make(Code::kShutdown, "the engine has ended", "cuda/serialising_proxy");
  return call(*backend_);
}

Status SerialisingProxy::allreduce(const Group& group, const std::vector<Operand>& operands,
                                   const Reduction& reduction) {
  return pass([&](Backend& to) { return to.allreduce(group, operands, reduction); });
}

Status SerialisingProxy::allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                                          const std::vector<std::ptrdiff_t>& offsets,
                                          const Reduction& reduction) {
  return pass(
      [&](Backend& to) { return to.allreduce_shared(group, operands, offsets, reduction); });
}

Status SerialisingProxy::broadcast(const Group& group, const std::vector<Operand>& operands,
                                   int group_root) {
  return pass([&](Backend& to) { return to.broadcast(group, operands, group_root); });
}

Status SerialisingProxy::allgather(const Group& group, const std::vector<Gather>& tensors) {
  return pass([&](Backend& to) { return to.allgather(group, tensors); });
}

Status SerialisingProxy::alltoall(const Group& group, const Exchange& exchange) {
  return pass([&](Backend& to) { return to.alltoall(group, exchange); });
}

Status SerialisingProxy::reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                                       const Reduction& reduction) {
  return pass([&](Backend& to) { return to.reducescatter(group, tensors, reduction); });
}

}  // namespace hvd::cuda
