#include "cuda/ring/persistent_ring.h"

#include <utility>

#include "cuda/device/pinned.h"

namespace hvd::cuda {

PersistentRing::PersistentRing(const BootstrapGroup& bootstrap, unsigned blocks)
    : device_(bootstrap.device),
      abort_(bootstrap.mesh->abort()),
      group_(bootstrap.group),
      shape_{blocks} {}

Result<std::unique_ptr<PersistentRing>> PersistentRing::make(const BootstrapGroup& bootstrap,
                                                             unsigned blocks, CUstream aside) {
  std::unique_ptr<PersistentRing> ring(new PersistentRing(bootstrap, blocks));
  auto mine = IpcBuffer::allocate(bootstrap.device, ring->shape_.bytes());
  Status status = mine.status();
  if (status) {
    ring->mine_ = mine.take();
    status = ring->zero(aside);
  }
  auto peers = exchange_handles(bootstrap, status ? ring->mine_.get() : nullptr, status);
  if (!peers) return peers.status();
  ring->peers_ = peers.take();
  return ring;
}

Status PersistentRing::zero(CUstream aside) {
  const Current current(*device_);
  if (!current) return current.status();
  const Driver& driver = device_->driver();
  Status status =
      driver.check(driver.cuMemsetD32Async(mine_->address(), 0, (shape_.bytes() + 3) / 4, aside),
                   "cuMemsetD32Async of the persistent ring's memory");
  if (!status) return status;
  return wait_for_stream(*device_, aside, abort_);
}

// Memory of the member `steps` ranks to the right, mapped on this device.
std::byte* PersistentRing::memory_at(std::size_t steps) const {
  const std::size_t group_rank =
      (static_cast<std::size_t>(group_.group_rank) + steps) % peers_.size();
  return peers_[group_rank] == nullptr ? mine_->base() : peers_[group_rank]->base();
}

Status PersistentRing::allreduce(const std::vector<Operand>& operands, const Reduction& reduction) {
  RingPart part;
  part.group_rank = group_.group_rank;
  part.size = group_.size();
  part.own = mine_->base();
  part.left = memory_at(peers_.size() - 1);
  part.right = memory_at(1);
  for (const Operand& operand : operands) {
    if (operand.count == 0) continue;
    if (Status paced = device_->in_flight_limiter().step(*device_, abort_); !paced) return paced;
    part.in = operand.in;
    part.out = operand.out;
    part.count = operand.count;
    Status status = device_->kernels().ring_allreduce(device_->stream(), reduction, shape_, part);
    if (!status) return status;
  }
  return Status::ok();
}

// The first word of the memory is the abort (kernels.h), which is never reset.
Status PersistentRing::abort_waits(CUstream aside) {
  if (std::exchange(waits_aborted_, true)) return Status::ok();
  CUstreamBatchMemOpParams abort{};
  abort.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  abort.writeValue.address = mine_->address();
  abort.writeValue.value = 1;
  const Driver& driver = device_->driver();
  return driver.check(driver.cuStreamBatchMemOp(aside, 1, &abort, 0),
                      "cuStreamBatchMemOp on the persistent ring's abort word");
}

}  // namespace hvd::cuda
