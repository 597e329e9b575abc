#include "cuda/ring_backend.h"

#include <string>
#include <utility>

#include "cuda/ring_move.h"
#include "cuda/ring_reduce.h"
#include "cuda/staged_backend.h"

namespace hvd::cuda {
namespace {

using Peers = std::vector<std::unique_ptr<PeerArena>>;

std::vector<std::byte*> bases_of(const Arena& arena, const Peers& peers) {
  std::vector<std::byte*> bases;
  for (const std::unique_ptr<PeerArena>& peer : peers)
    bases.push_back(peer == nullptr ? arena.base() : peer->base());
  return bases;
}

Status all_have_memory(const Party& party, const std::vector<ArenaOffer>& offers) {
  for (std::size_t place = 0; place < offers.size(); ++place) {
    const int rank = party.members[place].rank;
    if (offers[place].bytes == 0) {
      return Status::make(Code::kUnavailable,
                          "rank " + std::to_string(rank) + " has no memory for the ring",
                          "cuda/ring_backend", rank);
    }
  }
  return Status::ok();
}

Result<Peers> open_peers(const Party& party, const std::vector<ArenaOffer>& offers) {
  if (Status status = all_have_memory(party, offers); !status) return status;
  Peers peers;
  for (std::size_t place = 0; place < offers.size(); ++place) {
    peers.emplace_back();
    if (static_cast<int>(place) == party.team.place) continue;
    auto peer = PeerArena::open(party.device, party.mine(), party.members[place], offers[place]);
    if (!peer) return peer.status();
    peers.back() = peer.take();
  }
  return peers;
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
  const std::size_t bytes = least_arena(party.members);
  auto arena = Arena::make(party.device, bytes, members, party.mesh->abort());
  const auto offers =
      tell_all(party, arena ? arena.value()->offer(party.mine().process) : ArenaOffer{});
  if (!arena) return arena.status();
  if (!offers) return offers.status();
  auto peers = open_peers(party, offers.value());
  if (!peers) return peers.status();
  std::unique_ptr<DeviceBackend> backend =
      std::make_unique<RingBackend>(party, ArenaShape(bytes, members), arena.take(), peers.take());
  return backend;
}

RingBackend::RingBackend(const Party& party, const ArenaShape& shape, std::unique_ptr<Arena> arena,
                         Peers peers)
    : party_(party),
      arena_(std::move(arena)),
      peers_(std::move(peers)),
      ring_(party.device, party.team, shape, bases_of(*arena_, peers_)) {}

Status RingBackend::allreduce(const Team& team, const std::vector<Operand>& operands,
                              const Reduction& reduction) {
  if (reduction.op == ReduceOp::kAdasum) return adasum(team, operands, reduction);
  const Current current(*party_.device);
  if (!current) return current.status();
  last_ = "CUDA_SLICES";
  return ring_allreduce(ring_, operands, reduction);
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
  return current ? ring_.let_go(arena_->aside()) : current.status();
}

Status RingBackend::settle() {
  const Current current(*party_.device);
  return current ? ring_.settle() : current.status();
}

}  // namespace hvd::cuda
