#include "collective/cpu_backend.h"

#include <cstring>

#include "collective/ring.h"

namespace hvd {
namespace {

void copy_own(const Operand& operand) {
  if (operand.in != operand.out && operand.count > 0) {
    std::memcpy(operand.out, operand.in, operand.count);
  }
}

Ring ring_of(Mesh& mesh, int rank, int size) {
  return {rank, size, mesh.to((rank + 1) % size), mesh.from((rank + size - 1) % size),
          mesh.abort()};
}

}  // namespace

CpuBackend::CpuBackend(Mesh& mesh)
    : mesh_(mesh), rank_(mesh.topology().rank), size_(mesh.topology().size) {}

Status CpuBackend::allreduce(const std::vector<Operand>& operands, Dtype dtype,
                             const Scaling& scaling) {
  if (size_ == 1) {
    for (const Operand& operand : operands) {
      scale(dtype, operand.out, operand.in, operand.count, scaling);
    }
    return Status::ok();
  }
  const Ring ring = ring_of(mesh_, rank_, size_);
  const std::size_t longest = ring.to.slot_bytes() / size_of(wire_dtype(dtype));
  const Plan plan =
      Plan::sliced(operands, size_of(dtype), static_cast<std::size_t>(size_), longest);
  return speak(ring, allreduce_sentence(rank_, size_), plan, {dtype, scaling});
}

Status CpuBackend::broadcast(const std::vector<Operand>& operands, int root) {
  if (rank_ == root) {
    for (const Operand& operand : operands) copy_own(operand);
  }
  if (size_ == 1) return Status::ok();
  const Ring ring = ring_of(mesh_, rank_, size_);
  const Plan plan = Plan::sliced(operands, 1, 1, ring.to.slot_bytes());
  return speak(ring, broadcast_sentence(rank_, size_, root), plan, {});
}

Status CpuBackend::allgather(const std::vector<Operand>& blocks) {
  copy_own(blocks[static_cast<std::size_t>(rank_)]);
  if (size_ == 1) return Status::ok();
  const Ring ring = ring_of(mesh_, rank_, size_);
  const Plan plan = Plan::one_each(blocks, 1, ring.to.slot_bytes());
  return speak(ring, allgather_sentence(rank_, size_), plan, {});
}

}  // namespace hvd
