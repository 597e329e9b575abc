#include "cuda/ring/ring_reduce.h"

#include "collective/backend/plan.h"
#include "cuda/ring/packing_plan.h"

namespace hvd::cuda {
namespace {

class Slices {
 public:
  Slices(Ring& ring, const PackingPlan& layout, const Reduction& reduction)
      : ring_(ring), layout_(layout), reduction_(reduction), width_(size_of(reduction.dtype)) {}

  Status pack(std::size_t round) {
    ring_.wait_all(Phase::kFreed, round);
    std::vector<Piece> pieces;
    for (std::size_t chunk = 0; chunk < ring_.size(); ++chunk) {
      if (chunk == ring_.group_rank() && folds_in_place(round)) continue;
      std::byte* const room = room_of(ring_.group_rank(), chunk, round);
      for (const PackedPiece& share : layout_.shares(chunk, round))
        pieces.push_back({share.in, room + share.at, share.count});
    }
    Status status = ring_.prescale(reduction_, pieces);
    if (status) ring_.signal_all(Phase::kPacked, round);
    return status;
  }

  // The own chunk, into the own half.
  Status fold(std::size_t round) {
    ring_.wait_all(Phase::kPacked, round);
    const std::vector<PackedPiece>& shares = own(round);
    if (shares.empty()) return Status::ok();
    return fold_into(room_of(ring_.group_rank(), ring_.group_rank(), round) + shares.front().at,
                     round);
  }

  // The own chunk, into the outputs.
  Status fold_out(std::size_t round) {
    ring_.wait_all(Phase::kPacked, round);
    const std::vector<PackedPiece>& shares = own(round);
    if (shares.size() == 1) return fold_into(shares.front().out, round);
    if (shares.empty()) return Status::ok();
    std::byte* const room = room_of(ring_.group_rank(), ring_.group_rank(), round);
    Status status = fold_into(room + shares.front().at, round);
    if (!status) return status;
    std::vector<Piece> pieces;
    add_outputs(pieces, ring_.group_rank(), round);
    return ring_.copy(reduction_.dtype, pieces);
  }

  // Every chunk, from its owner.
  Status unpack(std::size_t round) {
    ring_.wait_all(Phase::kFolded, round);
    std::vector<Piece> pieces;
    for (std::size_t step = 0; step < ring_.size(); ++step)
      add_outputs(pieces, ring_.group_rank_at(step), round);
    return ring_.copy(reduction_.dtype, pieces);
  }

 private:
  const std::vector<PackedPiece>& own(std::size_t round) const {
    return layout_.shares(ring_.group_rank(), round);
  }

  // No peer reads what this rank packs for itself.
  bool folds_in_place(std::size_t round) const {
    return reduction_.scaling.before == 1.0 && own(round).size() == 1;
  }

  std::byte* room_of(std::size_t group_rank, std::size_t chunk, std::size_t round) const {
    return ring_.half(group_rank, round) + chunk * ring_.room();
  }

  Status fold_into(void* out, std::size_t round) {
    const std::size_t begin = own(round).front().at;
    const std::size_t bytes = layout_.extent(ring_.group_rank(), round) - begin;
    std::vector<const void*> inputs;
    for (std::size_t step = 1; step <= ring_.size(); ++step)
      inputs.push_back(room_of(ring_.group_rank_at(step), ring_.group_rank(), round) + begin);
    if (folds_in_place(round)) inputs.back() = own(round).front().in;
    return ring_.fold(reduction_, out, inputs, bytes / width_);
  }

  void add_outputs(std::vector<Piece>& pieces, std::size_t owner, std::size_t round) const {
    const std::byte* const room = room_of(owner, owner, round);
    for (const PackedPiece& share : layout_.shares(owner, round))
      pieces.push_back({room + share.at, share.out, share.count});
  }

  Ring& ring_;
  const PackingPlan& layout_;
  const Reduction& reduction_;
  const std::size_t width_;  // bytes of an element
};

const std::byte* element(const void* base, std::size_t index, std::size_t width) {
  return static_cast<const std::byte*>(base) + index * width;
}

PackingPlan sliced(const Ring& ring, const std::vector<Operand>& operands, std::size_t width) {
  PackingPlan layout(width, ring.size(), ring.room());
  for (std::size_t chunk = 0; chunk < ring.size(); ++chunk) {
    for (const Operand& operand : operands) {
      const std::size_t begin = slice_begin(operand.count, chunk, ring.size());
      const std::size_t end = slice_begin(operand.count, chunk + 1, ring.size());
      if (begin == end) continue;
      layout.add(chunk, element(operand.in, begin, width),
                 static_cast<std::byte*>(operand.out) + begin * width, begin, end - begin);
    }
  }
  return layout;
}

PackingPlan scattered(const Ring& ring, const std::vector<Scatter>& tensors, std::size_t width) {
  PackingPlan layout(width, ring.size(), ring.room());
  for (std::size_t chunk = 0; chunk < ring.size(); ++chunk) {
    for (const Scatter& tensor : tensors) {
      const std::size_t begin = tensor.begins[chunk], end = tensor.begins[chunk + 1];
      if (begin == end) continue;
      layout.add(chunk, element(tensor.in, begin, width),
                 chunk == ring.group_rank() ? tensor.out : nullptr, begin, end - begin);
    }
  }
  return layout;
}

// This member's slices.
std::vector<Stretch> own_slices(const Ring& ring, const std::vector<Operand>& operands,
                                std::size_t width) {
  std::vector<Stretch> slices;
  for (const Operand& operand : operands) {
    const std::size_t begin = slice_begin(operand.count, ring.group_rank(), ring.size());
    const std::size_t end = slice_begin(operand.count, ring.group_rank() + 1, ring.size());
    if (begin < end)
      slices.push_back({static_cast<std::byte*>(operand.out) + begin * width, end - begin});
  }
  return slices;
}

}  // namespace

// The next round is packed while a round's results are in flight.
Status ring_allreduce(Ring& ring, const std::vector<Operand>& operands,
                      const Reduction& reduction) {
  const PackingPlan layout = sliced(ring, operands, size_of(reduction.dtype));
  Slices work(ring, layout, reduction);
  const auto fold = [&](std::size_t round) {
    Status status = work.fold(round);
    if (status) ring.signal_all(Phase::kFolded, round);
    return status;
  };
  const auto pack = [&](std::size_t round) { return work.pack(round); };
  const auto unpack = [&](std::size_t round) {
    Status status = work.unpack(round);
    if (status) ring.signal_all(Phase::kFreed, round);
    return status;
  };
  ring.begin();
  Status status = run_pipeline(layout.rounds(), {{1, fold}, {0, pack}, {1, unpack}});
  return status ? ring.flush() : status;
}

// Uses only the signals of a half: inputs are ready, own slices are done in all members' memory,
// and the half is free again.
Status ring_allreduce_shared(Ring& ring, const std::vector<Operand>& operands,
                             const std::vector<std::ptrdiff_t>& offsets,
                             const Reduction& reduction) {
  std::vector<std::ptrdiff_t> rotated;
  for (std::size_t step = 1; step <= ring.size(); ++step)
    rotated.push_back(offsets[ring.group_rank_at(step)]);
  ring.begin();
  ring.wait_all(Phase::kFreed, 0);
  ring.signal_all(Phase::kPacked, 0);
  ring.wait_all(Phase::kPacked, 0);
  Status status =
      ring.fold_shared(reduction, own_slices(ring, operands, size_of(reduction.dtype)), rotated);
  if (!status) return status;
  ring.signal_all(Phase::kFolded, 0);
  ring.wait_all(Phase::kFolded, 0);
  ring.signal_all(Phase::kFreed, 0);
  return ring.flush();
}

Status ring_reducescatter(Ring& ring, const std::vector<Scatter>& tensors,
                          const Reduction& reduction) {
  const PackingPlan layout = scattered(ring, tensors, size_of(reduction.dtype));
  Slices work(ring, layout, reduction);
  const auto pack = [&](std::size_t round) { return work.pack(round); };
  const auto fold = [&](std::size_t round) {
    Status status = work.fold_out(round);
    if (status) ring.signal_all(Phase::kFreed, round);
    return status;
  };
  ring.begin();
  Status status = run_pipeline(layout.rounds(), {{0, pack}, {1, fold}});
  return status ? ring.flush() : status;
}

}  // namespace hvd::cuda
