#include "cuda/ring/ring_backend.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "cuda/ring/ring.h"
#include "cuda/staged/staged_backend.h"

namespace hvd::cuda {

namespace {

constexpr std::uint32_t kMostBlocks = 32;  // the rest of the device is left to computations

// Number of members on its device, itself included.
std::uint32_t sharers_of(const PeerInfo& member, const std::vector<PeerInfo>& members) {
  return static_cast<std::uint32_t>(
      std::count_if(members.begin(), members.end(), [&](const PeerInfo& other) {
        return other.host == member.host && other.uuid == member.uuid;
      }));
}

// Blocks of one member if all members on its device have the same number: one per multiprocessor.
std::uint32_t room_of(const PeerInfo& member, const std::vector<PeerInfo>& members) {
  return member.multiprocessors / sharers_of(member, members);
}

std::uint32_t blocks_of(const std::vector<PeerInfo>& members) {
  std::uint32_t blocks = kMostBlocks;
  for (const PeerInfo& member : members) blocks = std::min(blocks, room_of(member, members));
  return blocks;
}

std::string share_sentence(std::int32_t one, std::int32_t other) {
  return "rank " + std::to_string(one) + " and rank " + std::to_string(other) +
         " are processes that share a device, where kernels that wait for each other may never run "
         "together (give each rank a GPU of its own)";
}

std::string why_not_on_device_of(const PeerInfo& member) {
  if (member.time_limit == 1)
    return "the driver ends what runs for seconds on the device of " + rank_of(member) +
           ", as where a display hangs on it";
  if (member.sharer >= 0) return share_sentence(member.rank, member.sharer);
  if (member.silent < 0) return "";
  return rank_of(member) + " and rank " + std::to_string(member.silent) +
         " may be processes that share a device: rank " + std::to_string(member.silent) +
         " is not among these ranks and has not told its device yet (the first operation of all "
         "ranks on their devices does)";
}

// "" or the reason why the members' kernels cannot run concurrently to the end.
std::string why_not_persistent(const std::vector<PeerInfo>& members) {
  std::string shared = of_pairs(members, [](const PeerInfo& one, const PeerInfo& other) {
    return share_device(one, other) ? share_sentence(one.rank, other.rank) : std::string();
  });
  if (!shared.empty()) return shared;
  for (const PeerInfo& member : members)
    if (std::string why = why_not_on_device_of(member); !why.empty()) return why;
  return blocks_of(members) == 0 ? "a device has too few multiprocessors for all" : "";
}

bool any_shared(const std::vector<PeerInfo>& members) {
  return std::any_of(members.begin(), members.end(),
                     [&](const PeerInfo& member) { return sharers_of(member, members) > 1; });
}

}  // namespace

Result<RingAlgorithms> ring_algorithms(const std::vector<PeerInfo>& members) {
  const std::string wish = text_in(members.front().ring);
  if (wish == "slices" || members.size() < 2) return RingAlgorithms{};
  const std::string why_not = why_not_persistent(members);
  if (wish != "persistent")
    return RingAlgorithms{true, why_not.empty() && !any_shared(members) ? blocks_of(members) : 0};
  if (why_not.empty()) return RingAlgorithms{false, blocks_of(members)};
  return Status::make(Code::kInvalidArgument,
                      "HVD_GPU_RING=persistent is not possible among these ranks: " + why_not +
                          "; use auto or slices",
                      "cuda/ring_algorithm");
}

namespace {

// Shorter tensors use slices: many of them in a few launches.
constexpr std::size_t kLeastPersistent = std::size_t{1} << 20U;  // bytes of a tensor, on average

std::vector<std::byte*> bases_of(const Arena& arena, const Peers& peers) {
  std::vector<std::byte*> bases;
  for (const std::unique_ptr<ImportedBuffer>& peer : peers)
    bases.push_back(peer == nullptr ? arena.base() : peer->base());
  return bases;
}

DeviceRegion region_of(const std::shared_ptr<IpcBuffer>& mine, Peers peers) {
  DeviceRegion region;
  std::byte* const base = mine->base();
  for (const std::unique_ptr<ImportedBuffer>& peer : peers)
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

Result<std::unique_ptr<DeviceBackend>> make_ring_backend(const BootstrapGroup& bootstrap) {
  const auto members = static_cast<std::size_t>(bootstrap.group.size());
  if (members == 1) return make_staged_backend(bootstrap);  // which needs no exchange then
  if (members > kMostFolded) return too_many(members);
  const auto algorithms = ring_algorithms(bootstrap.members);
  if (!algorithms) return algorithms.status();
  const std::size_t bytes = least_arena(bootstrap.members);
  auto arena = Arena::make(bootstrap.device, bytes, members, bootstrap.mesh->abort());
  auto peers =
      exchange_handles(bootstrap, arena ? &arena.value()->memory() : nullptr, arena.status());
  if (!peers) return peers.status();
  auto backend = std::make_unique<RingBackend>(bootstrap, ArenaShape(bytes, members), arena.take(),
                                               peers.take());
  Status status = backend->add_algorithms(algorithms.value());
  if (status) return std::unique_ptr<DeviceBackend>(std::move(backend));
  return part_together(*backend, bootstrap, status);
}

RingBackend::RingBackend(const BootstrapGroup& bootstrap, const ArenaShape& shape,
                         std::unique_ptr<Arena> arena, Peers peers)
    : bootstrap_(bootstrap),
      arena_(std::move(arena)),
      peers_(std::move(peers)),
      ring_(bootstrap.device, bootstrap.mesh->abort(), bootstrap.group, shape,
            bases_of(*arena_, peers_)) {}

Status RingBackend::add_algorithms(const RingAlgorithms& algorithms) {
  if (algorithms.blocks == 0) return Status::ok();
  auto made = PersistentRing::make(bootstrap_, algorithms.blocks, arena_->aside());
  if (!made) return algorithms.slices ? Status::ok() : made.status();
  persistent_ = made.take();
  algorithms_.push_back(RingAlgorithm::kPersistent);
  if (!algorithms.slices) algorithms_.erase(algorithms_.begin());
  take(0);
  return Status::ok();
}

bool RingBackend::uses_persistent(const std::vector<Operand>& operands,
                                  const Reduction& reduction) const {
  if (algorithm_ != RingAlgorithm::kPersistent || !Kernels::sums_floats(reduction)) return false;
  if (algorithms_.front() == RingAlgorithm::kPersistent || in_self_test_) return true;  // requested
  const std::size_t elements =
      std::accumulate(operands.begin(), operands.end(), std::size_t{0},
                      [](std::size_t sum, const Operand& each) { return sum + each.count; });
  return elements * size_of(reduction.dtype) >= operands.size() * kLeastPersistent;
}

Status RingBackend::allreduce(const Group& group, const std::vector<Operand>& operands,
                              const Reduction& reduction) {
  if (reduction.op == ReduceOp::kAdasum) return adasum(group, operands, reduction);
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  if (uses_persistent(operands, reduction)) {
    last_ = "CUDA_RING";
    return persistent_->allreduce(operands, reduction);
  }
  last_ = "CUDA_SLICES";
  return ring_allreduce(ring_, operands, reduction);
}

Status RingBackend::allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                                     const std::vector<std::ptrdiff_t>& offsets,
                                     const Reduction& reduction) {
  if (!Kernels::sums_floats(reduction)) return allreduce(group, operands, reduction);
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  last_ = "CUDA_SHARED";
  return ring_allreduce_shared(ring_, operands, offsets, reduction);
}

Result<DeviceRegion> RingBackend::share_memory(std::size_t bytes, const Status& own) {
  auto mine =
      own ? IpcBuffer::allocate(bootstrap_.device, bytes) : Result<std::shared_ptr<IpcBuffer>>(own);
  auto peers = exchange_handles(bootstrap_, mine ? mine.value().get() : nullptr, mine.status());
  if (peers) return region_of(mine.take(), peers.take());
  // Freeing memory waits for the whole device, also for ranks that are threads of this process: no
  // member continues until all have freed.
  if (mine) mine.take().reset();
  return end_together(bootstrap_, peers.status());
}

Status RingBackend::adasum(const Group& group, const std::vector<Operand>& operands,
                           const Reduction& reduction) {
  if (staged_ == nullptr) {
    auto staged = make_staged_backend(bootstrap_);
    if (!staged) return staged.status();
    staged_ = staged.take();
  }
  if (!in_self_test_) warn_staged(group, "the ring on devices", reduction);
  Status status = staged_->allreduce(group, operands, reduction);
  last_ = staged_->last_algorithm();
  return status;
}

Status RingBackend::broadcast(const Group& /*group*/, const std::vector<Operand>& operands,
                              int group_root) {
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  last_ = "CUDA_STAR";
  return ring_broadcast(ring_, operands, static_cast<std::size_t>(group_root));
}

Status RingBackend::allgather(const Group& /*group*/, const std::vector<Gather>& tensors) {
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  last_ = "CUDA_PAIRS";
  return ring_allgather(ring_, tensors);
}

Status RingBackend::alltoall(const Group& /*group*/, const Exchange& exchange) {
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  last_ = "CUDA_PAIRS";
  return ring_alltoall(ring_, exchange);
}

Status RingBackend::reducescatter(const Group& /*group*/, const std::vector<Scatter>& tensors,
                                  const Reduction& reduction) {
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  last_ = "CUDA_SLICES";
  return ring_reducescatter(ring_, tensors, reduction);
}

Status RingBackend::abort_waits() {
  if (staged_ != nullptr) {
    if (Status status = staged_->abort_waits(); !status) return status;
  }
  const Current current(*bootstrap_.device);
  if (!current) return current.status();
  Status status = persistent_ == nullptr ? Status::ok() : persistent_->abort_waits(arena_->aside());
  return status ? ring_.abort_waits(arena_->aside()) : status;
}

void RingBackend::part() {
  if (persistent_ != nullptr) persistent_->part();
  peers_.clear();
}

Status RingBackend::finalize() {
  const Current current(*bootstrap_.device);
  return current ? ring_.finalize() : current.status();
}

}  // namespace hvd::cuda
