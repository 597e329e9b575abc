#include "engine/execution/eager.h"

#include <algorithm>
#include <cstring>

#include "collective/cpu_backend.h"

namespace hvd {
namespace {

template <typename Visit>
bool every_peer(const Mesh& mesh, const Visit& visit) {
  const int size = mesh.topology().size;
  for (int step = 1; step < size; ++step) {  // not everybody turns to the same one first
    if (!visit((mesh.topology().rank + step) % size)) return false;
  }
  return true;
}

}  // namespace

bool may_send_eagerly(const Parts& parts, const Task& task) {
  EagerLinks* const links = parts.mesh.eager();
  const Request& request = task.request;
  if (links == nullptr || request.kind != Kind::kAllreduce || request.set != 0) return false;
  if (request.on_device() || request.prescale != 1.0 || request.op == ReduceOp::kAdasum)
    return false;
  const Dtype dtype = request.tensors.front().dtype;
  std::size_t count = 0;
  for (const TensorMeta& tensor : request.tensors) {
    if (tensor.dtype != dtype) return false;
    count += static_cast<std::size_t>(tensor.count());
  }
  if (count * size_of(dtype) > links->most_bytes()) return false;
  if (!parts.backends.host().is_one_hand_over(*parts.groups.find(0), count, dtype)) return false;
  return every_peer(parts.mesh, [&](int peer) { return links->acquire(peer) != nullptr; });
}

void send_eagerly(const Parts& parts, const Task& task, const EagerTag& tag) {
  EagerLinks& links = *parts.mesh.eager();
  const std::size_t width = size_of(task.request.tensors.front().dtype);
  every_peer(parts.mesh, [&](int peer) {
    std::byte* const slot = links.acquire(peer);
    std::size_t filled = 0;
    for (const Operand& operand : task.operands) {
      if (operand.count > 0) std::memcpy(slot + filled, operand.in, operand.count * width);
      filled += operand.count * width;
    }
    links.publish(peer, tag, filled);
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

}  // namespace hvd
