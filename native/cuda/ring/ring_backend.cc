#include "cuda/ring/ring_backend.h"

#include <numeric>
#include <string>
#include <utility>

#include "cuda/ring/ring_move.h"
#include "cuda/ring/ring_reduce.h"
#include "cuda/staged/staged_backend.h"

namespace hvd::cuda {
namespace {

// Shorter tensors go in slices: many of them in a few launches.
constexpr std::size_t kLeastPersistent = std::size_t{1} << 20U;  // bytes of a tensor, on average

std::vector<std::byte*> bases_of(const Arena& arena, const Peers& peers) {
  std::vector<std::byte*> bases;
  for (const std::unique_ptr<PeerMemory>& peer : peers)
    bases.push_back(peer == nullptr ? arena.base() : peer->base());
  return bases;
}

DeviceRegion region_of(const std::shared_ptr<LentMemory>& mine, Peers peers) {
  DeviceRegion region;
  std::byte* const base = mine->base();
  for (const std::unique_ptr<PeerMemory>& peer : peers)
    region.offsets.push_back(peer == nullptr ? 0 : peer->base() - base);
  region.mine = std::shared_ptr<void>(mine, base);
  region.mapping = std::make_shared<Peers>(std::move(peers));
  return region;
}

Status too_many(std::size_t members) {
  return Status::make(Code::kInvalidArgument,
                      "the ring on devices is for " + std::to_string(kMostFolded) +
                          " ranks at most, these are " + std::to_string(members) +
                          ": use HOROVOD_GPU_OPERATIONS=staged or nccl",
                      "cuda/ring_backend");
}

}  // namespace

Result<std::unique_ptr<DeviceBackend>> make_ring_backend(const Party& party) {
  const auto members = static_cast<std::size_t>(party.team.size());
  if (members == 1) return make_staged_backend(party);  // which asks nobody then
  if (members > kMostFolded) return too_many(members);
  const auto forms = ring_forms(party.members);
  if (!forms) return forms.status();
  const std::size_t bytes = least_arena(party.members);
  auto arena = Arena::make(party.device, bytes, members, party.mesh->abort());
  auto peers = lend(party, arena ? &arena.value()->memory() : nullptr, arena.status());
  if (!peers) return peers.status();
  auto backend =
      std::make_unique<RingBackend>(party, ArenaShape(bytes, members), arena.take(), peers.take());
  Status status = backend->add_forms(forms.value());
  if (status) return std::unique_ptr<DeviceBackend>(std::move(backend));
  return part_together(*backend, party, status);
}

RingBackend::RingBackend(const Party& party, const ArenaShape& shape, std::unique_ptr<Arena> arena,
                         Peers peers)
    : party_(party),
      arena_(std::move(arena)),
      peers_(std::move(peers)),
      ring_(party.device, party.mesh->abort(), party.team, shape, bases_of(*arena_, peers_)) {}

Status RingBackend::add_forms(const RingForms& forms) {
  if (forms.blocks == 0) return Status::ok();
  auto made = PersistentRing::make(party_, forms.blocks, arena_->aside());
  if (!made) return forms.slices ? Status::ok() : made.status();
  persistent_ = made.take();
  forms_.push_back(Form::kPersistent);
  if (!forms.slices) forms_.erase(forms_.begin());
  take(0);
  return Status::ok();
}

bool RingBackend::goes_persistently(const std::vector<Operand>& operands,
                                    const Reduction& reduction) const {
  if (form_ != Form::kPersistent || !Kernels::sums_floats(reduction)) return false;
  if (forms_.front() == Form::kPersistent || on_trial_) return true;  // it was asked for
  const std::size_t elements =
      std::accumulate(operands.begin(), operands.end(), std::size_t{0},
                      [](std::size_t sum, const Operand& each) { return sum + each.count; });
  return elements * size_of(reduction.dtype) >= operands.size() * kLeastPersistent;
}

Status RingBackend::allreduce(const Team& team, const std::vector<Operand>& operands,
                              const Reduction& reduction) {
  if (reduction.op == ReduceOp::kAdasum) return adasum(team, operands, reduction);
  const Current current(*party_.device);
  if (!current) return current.status();
  if (goes_persistently(operands, reduction)) {
    last_ = "CUDA_RING";
    return persistent_->allreduce(operands, reduction);
  }
  last_ = "CUDA_SLICES";
  return ring_allreduce(ring_, operands, reduction);
}

Status RingBackend::allreduce_shared(const Team& team, const std::vector<Operand>& operands,
                                     const std::vector<std::ptrdiff_t>& offsets,
                                     const Reduction& reduction) {
  if (!Kernels::sums_floats(reduction)) return allreduce(team, operands, reduction);
  const Current current(*party_.device);
  if (!current) return current.status();
  last_ = "CUDA_SHARED";
  return ring_allreduce_shared(ring_, operands, offsets, reduction);
}

Result<DeviceRegion> RingBackend::share_memory(std::size_t bytes, const Status& own) {
  auto mine =
      own ? LentMemory::allocate(party_.device, bytes) : Result<std::shared_ptr<LentMemory>>(own);
  auto peers = lend(party_, mine ? mine.value().get() : nullptr, mine.status());
  if (peers) return region_of(mine.take(), peers.take());
  // Giving memory back waits for the whole device, ranks that are threads of this process included:
  // nobody goes on until all have.
  if (mine) mine.take().reset();
  return end_together(party_, peers.status());
}

Status RingBackend::adasum(const Team& team, const std::vector<Operand>& operands,
                           const Reduction& reduction) {
  if (staged_ == nullptr) {
    auto staged = make_staged_backend(party_);
    if (!staged) return staged.status();
    staged_ = staged.take();
  }
  Status status = staged_->allreduce(team, operands, reduction);
  last_ = staged_->last_algorithm();
  return status;
}

Status RingBackend::broadcast(const Team& /*team*/, const std::vector<Operand>& operands,
                              int root_place) {
  const Current current(*party_.device);
  if (!current) return current.status();
  last_ = "CUDA_STAR";
  return ring_broadcast(ring_, operands, static_cast<std::size_t>(root_place));
}

Status RingBackend::allgather(const Team& /*team*/, const std::vector<Gather>& tensors) {
  const Current current(*party_.device);
  if (!current) return current.status();
  last_ = "CUDA_PAIRS";
  return ring_allgather(ring_, tensors);
}

Status RingBackend::alltoall(const Team& /*team*/, const Exchange& exchange) {
  const Current current(*party_.device);
  if (!current) return current.status();
  last_ = "CUDA_PAIRS";
  return ring_alltoall(ring_, exchange);
}

Status RingBackend::reducescatter(const Team& /*team*/, const std::vector<Scatter>& tensors,
                                  const Reduction& reduction) {
  const Current current(*party_.device);
  if (!current) return current.status();
  last_ = "CUDA_SLICES";
  return ring_reducescatter(ring_, tensors, reduction);
}

Status RingBackend::let_go() {
  if (staged_ != nullptr) {
    if (Status status = staged_->let_go(); !status) return status;
  }
  const Current current(*party_.device);
  if (!current) return current.status();
  Status status = persistent_ == nullptr ? Status::ok() : persistent_->let_go(arena_->aside());
  return status ? ring_.let_go(arena_->aside()) : status;
}

void RingBackend::part() {
  if (persistent_ != nullptr) persistent_->part();
  peers_.clear();
}

Status RingBackend::settle() {
  const Current current(*party_.device);
  return current ? ring_.settle() : current.status();
}

}  // namespace hvd::cuda
