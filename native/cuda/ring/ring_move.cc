#include "cuda/ring/ring_move.h"

#include <algorithm>

#include "collective/backend/plan.h"
#include "cuda/ring/packing_plan.h"

namespace hvd::cuda {
namespace {

void add_packing(std::vector<Piece>& pieces, const std::vector<PackedPiece>& shares,
                 std::byte* room) {
  for (const PackedPiece& share : shares)
    pieces.push_back({share.in, room + share.at, share.count});
}

void add_unpacking(std::vector<Piece>& pieces, const std::vector<PackedPiece>& shares,
                   const std::byte* room) {
  for (const PackedPiece& share : shares)
    pieces.push_back({room + share.at, share.out, share.count});
}

// out = in, unless they are the same.
void add_copy(std::vector<Piece>& pieces, const void* in, void* out, std::size_t bytes) {
  if (in != out && bytes > 0) pieces.push_back({in, out, bytes});
}

// Data of one member for all: a list of pieces in its half.
class Broadcasting {
 public:
  Broadcasting(Ring& ring, const PackingPlan& layout) : ring_(ring), layout_(layout) {}

  // own: copies within this rank's memory, in the same launch.
  Status pack(std::size_t round, std::vector<Piece> own) {
    const std::vector<PackedPiece>& shares = layout_.shares(ring_.group_rank(), round);
    if (!shares.empty()) ring_.wait_all(Phase::kFreed, round);
    add_packing(own, shares, ring_.half(ring_.group_rank(), round));
    Status status = ring_.copy(Dtype::kUint8, own);
    if (status && !shares.empty()) ring_.signal_all(Phase::kPacked, round);
    return status;
  }

  // From all other members with data left.
  Status unpack(std::size_t round) {
    std::vector<std::size_t> givers;
    std::vector<Piece> pieces;
    for (std::size_t step = 1; step < ring_.size(); ++step) {
      const std::size_t giver = ring_.group_rank_at(step);
      if (layout_.shares(giver, round).empty()) continue;
      givers.push_back(giver);
      ring_.wait(Phase::kPacked, round, giver);
      add_unpacking(pieces, layout_.shares(giver, round), ring_.half(giver, round));
    }
    Status status = ring_.copy(Dtype::kUint8, pieces);
    if (!status) return status;
    for (const std::size_t giver : givers) ring_.signal(Phase::kFreed, round, giver);
    return Status::ok();
  }

 private:
  Ring& ring_;
  const PackingPlan& layout_;
};

Status run(Ring& ring, const PackingPlan& layout, const std::vector<Piece>& own) {
  Broadcasting work(ring, layout);
  const auto pack = [&](std::size_t round) {
    return work.pack(round, round == 0 ? own : std::vector<Piece>{});
  };
  const auto unpack = [&](std::size_t round) { return work.unpack(round); };
  ring.begin();
  Status status = run_pipeline(layout.rounds(), {{0, pack}, {1, unpack}});
  return status ? ring.flush() : status;
}

// Separate data for every peer, in its own room of the half.
class Exchanging {
 public:
  Exchanging(Ring& ring, const Exchange& exchange)
      : ring_(ring), out_(1, ring.size(), ring.room()), in_(1, ring.size(), ring.room()) {
    for (std::size_t step = 1; step < ring.size(); ++step) {
      const std::size_t peer = ring.group_rank_at(step);
      out_.add(peer, exchange.in[peer], nullptr, 0, exchange.in_bytes[peer]);
      in_.add(peer, nullptr, exchange.out[peer], 0, exchange.out_bytes[peer]);
    }
  }

  std::size_t rounds() const { return std::max(out_.rounds(), in_.rounds()); }

  Status pack(std::size_t round, std::vector<Piece> own) {
    std::byte* const half = ring_.half(ring_.group_rank(), round);
    const std::vector<std::size_t> readers = busy(out_, round);
    // Wait for all peers: they may have read the previous contents of these rooms.
    if (!readers.empty()) check_all_freed(round);
    for (const std::size_t reader : readers) {
      ring_.wait(Phase::kFreed, round, reader);
      add_packing(own, out_.shares(reader, round), half + reader * ring_.room());
    }
    Status status = ring_.copy(Dtype::kUint8, own);
    if (!status) return status;
    for (const std::size_t reader : readers) ring_.signal(Phase::kPacked, round, reader);
    return Status::ok();
  }

  Status unpack(std::size_t round) {
    std::vector<Piece> pieces;
    const std::vector<std::size_t> givers = busy(in_, round);
    for (const std::size_t giver : givers) {
      ring_.wait(Phase::kPacked, round, giver);
      add_unpacking(pieces, in_.shares(giver, round),
                    ring_.half(giver, round) + ring_.group_rank() * ring_.room());
    }
    Status status = ring_.copy(Dtype::kUint8, pieces);
    if (!status) return status;
    for (const std::size_t giver : givers) ring_.signal(Phase::kFreed, round, giver);
    return Status::ok();
  }

 private:
  void check_all_freed(std::size_t round) {
    for (std::size_t step = 1; step < ring_.size(); ++step)
      ring_.see(Phase::kFreed, round, ring_.group_rank_at(step));
  }

  // The peers with data in this round, known to both ends.
  std::vector<std::size_t> busy(const PackingPlan& layout, std::size_t round) const {
    std::vector<std::size_t> peers;
    for (std::size_t step = 1; step < ring_.size(); ++step) {
      const std::size_t peer = ring_.group_rank_at(step);
      if (!layout.shares(peer, round).empty()) peers.push_back(peer);
    }
    return peers;
  }

  Ring& ring_;
  PackingPlan out_, in_;  // by peer
};

}  // namespace

Status ring_broadcast(Ring& ring, const std::vector<Operand>& operands, std::size_t root) {
  PackingPlan layout(1, ring.size(), ring.half_bytes());
  std::vector<Piece> own;
  for (const Operand& operand : operands) {
    layout.add(root, operand.in, operand.out, 0, operand.count);
    if (ring.group_rank() == root) add_copy(own, operand.in, operand.out, operand.count);
  }
  return run(ring, layout, own);
}

Status ring_allgather(Ring& ring, const std::vector<Gather>& tensors) {
  PackingPlan layout(1, ring.size(), ring.half_bytes());
  std::vector<Piece> own;
  for (const Gather& tensor : tensors) {
    for (std::size_t group_rank = 0; group_rank < ring.size(); ++group_rank) {
      const std::byte* const in = group_rank == ring.group_rank() ? tensor.in : nullptr;
      layout.add(group_rank, in, tensor.out[group_rank], 0, tensor.bytes[group_rank]);
    }
    add_copy(own, tensor.in, tensor.out[ring.group_rank()], tensor.bytes[ring.group_rank()]);
  }
  return run(ring, layout, own);
}

Status ring_alltoall(Ring& ring, const Exchange& exchange) {
  Exchanging work(ring, exchange);
  std::vector<Piece> own;
  add_copy(own, exchange.in[ring.group_rank()], exchange.out[ring.group_rank()],
           exchange.in_bytes[ring.group_rank()]);
  const auto pack = [&](std::size_t round) {
    return work.pack(round, round == 0 ? own : std::vector<Piece>{});
  };
  const auto unpack = [&](std::size_t round) { return work.unpack(round); };
  ring.begin();
  // At least one round, for local copies.
  Status status = run_pipeline(std::max<std::size_t>(work.rounds(), 1), {{0, pack}, {1, unpack}});
  return status ? ring.flush() : status;
}

}  // namespace hvd::cuda
