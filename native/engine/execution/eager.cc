#include "engine/execution/eager.h"

#include <algorithm>
#include <cstring>

#include "collective/cpu_backend.h"

namespace hvd {
namespace {

template <typename Visit>
bool every_peer(const Mesh& mesh, const Visit& visit) {
  const int size = mesh.topology().size;
  for (int step = 1; step < size; ++step) {  // spreads the ranks over the peers
    if (!visit((mesh.topology().rank + step) % size)) return false;
  }
  return true;
}

template <typename Copy>
void copy_inputs(const std::vector<Operand>& operands, Dtype dtype, std::byte* to,
                 const Copy& copy) {
  const std::size_t width = size_of(dtype);
  for (const Operand& operand : operands) {
    if (operand.count > 0) copy(to, operand.in, operand.count * width);
    to += operand.count * width;
  }
}

}  // namespace

bool may_be_sent_early(const Parts& parts, const Request& request, std::size_t most_bytes) {
  if (request.kind != Kind::kAllreduce || request.set != 0) return false;
  if (request.on_device() || request.prescale != 1.0 || request.op == ReduceOp::kAdasum)
    return false;
  const Dtype dtype = request.tensors.front().dtype;
  std::size_t count = 0;
  for (const TensorMeta& tensor : request.tensors) {
    if (tensor.dtype != dtype) return false;
    count += static_cast<std::size_t>(tensor.count());
  }
  if (count * size_of(dtype) > most_bytes) return false;
  return parts.backends.host().is_single_exchange(*parts.groups.find(0), count, dtype);
}

bool may_send_eagerly(const Parts& parts, const Task& task) {
  EagerLinks* const links = parts.mesh.eager();
  if (links == nullptr || !may_be_sent_early(parts, task.request, links->most_bytes()))
    return false;
  return every_peer(parts.mesh, [&](int peer) { return links->acquire(peer) != nullptr; });
}

void send_eagerly(const Parts& parts, const Task& task, const EagerTag& tag) {
  EagerLinks& links = *parts.mesh.eager();
  const auto bytes = static_cast<std::size_t>(task.request.bytes());
  const Dtype dtype = task.request.tensors.front().dtype;
  every_peer(parts.mesh, [&](int peer) {
    copy_inputs(task.operands, dtype, links.acquire(peer), std::memcpy);
    links.publish(peer, tag, bytes);
    return true;
  });
}

Status allreduce_eagerly(const Parts& parts, const Group& group,
                         const std::vector<Operand>& operands, const Reduction& reduction) {
  EagerLinks& links = *parts.mesh.eager();
  every_peer(parts.mesh, [&](int peer) {
    links.accept(peer);
    return true;
  });
  parts.counters.eager.fetch_add(1, std::memory_order_relaxed);
  return parts.backends.host().allreduce_sent(group, operands, reduction);
}

bool may_be_put_beside(const Parts& parts, const Request& request) {
  const FastPathData data = parts.mesh.fast_path_data();
  return data.base != nullptr && may_be_sent_early(parts, request, data.bytes);
}

void put_beside(const Parts& parts, const std::vector<Operand>& operands, Dtype dtype, int half,
                SlotStore& store) {
  copy_inputs(
      operands, dtype, parts.mesh.fast_path_data().half(parts.mesh.topology().rank, half),
      [&](std::byte* to, const void* from, std::size_t bytes) { store.copy(to, from, bytes); });
}

Status allreduce_beside(const Parts& parts, const Group& group,
                        const std::vector<Operand>& operands, const Reduction& reduction,
                        int half) {
  const FastPathData data = parts.mesh.fast_path_data();
  parts.counters.eager.fetch_add(1, std::memory_order_relaxed);
  return parts.backends.host().allreduce_shared_inputs(
      group, operands, [&](int rank) { return data.half(rank, half); }, reduction);
}

}  // namespace hvd
