#include "cuda/ring/ring.h"

#include <algorithm>
#include <utility>

#include "collective/backend/plan.h"
#include "cuda/ring/arena.h"

namespace hvd::cuda {

namespace {

constexpr std::size_t kMostWords = 128;  // per call; the driver accepts less than 256

CUstreamBatchMemOpParams written(CUdeviceptr word, cuuint32_t value) {
  CUstreamBatchMemOpParams params{};
  params.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  params.writeValue.address = word;
  params.writeValue.value = value;
  params.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // behind a fence
  return params;
}

CUstreamBatchMemOpParams awaited(CUdeviceptr word) {
  CUstreamBatchMemOpParams params{};
  params.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  params.waitValue.address = word;
  params.waitValue.value = 1;
  params.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return params;
}

}  // namespace

Ring::Ring(std::shared_ptr<Device> device, const Abort& abort, const Group& group,
           const ArenaShape& shape, std::vector<std::byte*> bases)
    : device_(std::move(device)),
      abort_(abort),
      group_rank_(static_cast<std::size_t>(group.group_rank)),
      shape_(shape),
      bases_(std::move(bases)) {}

std::byte* Ring::half(std::size_t group_rank, std::size_t round) const {
  return bases_[group_rank] + shape_.half(half_of(round));
}

CUdeviceptr Ring::word(std::size_t of, Phase phase, std::size_t half, std::size_t from) const {
  return reinterpret_cast<CUdeviceptr>(bases_[of] + shape_.word(phase, half, from));
}

void Ring::signal(Phase phase, std::size_t round, std::size_t to) {
  due_.push_back(written(word(to, phase, half_of(round), group_rank_), 1));
}

void Ring::wait(Phase phase, std::size_t round, std::size_t from) {
  see(phase, round, from);
  due_.push_back(written(word(group_rank_, phase, half_of(round), from), 0));
}

void Ring::see(Phase phase, std::size_t round, std::size_t from) {
  due_.push_back(awaited(word(group_rank_, phase, half_of(round), from)));
}

void Ring::signal_all(Phase phase, std::size_t round) {
  for (std::size_t step = 1; step < size(); ++step) signal(phase, round, group_rank_at(step));
}

void Ring::wait_all(Phase phase, std::size_t round) {
  for (std::size_t step = 1; step < size(); ++step) wait(phase, round, group_rank_at(step));
}

Status Ring::flush() {
  if (due_.empty()) return Status::ok();
  if (Status status = device_->in_flight_limiter().step(*device_, abort_); !status) return status;
  return enqueue(device_->stream(), due_);
}

// Enqueue the signals and waits before the next kernel.
Status Ring::step() {
  if (Status status = flush(); !status) return status;
  return device_->in_flight_limiter().step(*device_, abort_);
}

Status Ring::enqueue(CUstream stream, std::vector<CUstreamBatchMemOpParams>& words) {
  const Driver& driver = device_->driver();
  Status status = Status::ok();
  for (std::size_t at = 0; at < words.size() && status; at += kMostWords) {
    const std::size_t count = std::min(kMostWords, words.size() - at);
    status = driver.check(
        driver.cuStreamBatchMemOp(stream, static_cast<unsigned>(count), words.data() + at, 0),
        "cuStreamBatchMemOp");
  }
  words.clear();
  return status;
}

Status Ring::prescale(const Reduction& reduction, const std::vector<Piece>& pieces) {
  if (pieces.empty()) return Status::ok();
  if (Status status = step(); !status) return status;
  return device_->kernels().prescale(device_->stream(), reduction, pieces);
}

Status Ring::copy(Dtype dtype, const std::vector<Piece>& pieces) {
  Reduction plain;
  plain.dtype = dtype;
  return prescale(plain, pieces);
}

Status Ring::fold(const Reduction& reduction, void* out, const std::vector<const void*>& inputs,
                  std::size_t count) {
  if (count == 0) return Status::ok();
  if (Status status = step(); !status) return status;
  return device_->kernels().fold(device_->stream(), reduction, out, inputs, count);
}

Status Ring::fold_shared(const Reduction& reduction, const std::vector<Stretch>& stretches,
                         const std::vector<std::ptrdiff_t>& offsets) {
  if (stretches.empty()) return Status::ok();
  if (Status status = step(); !status) return status;
  return device_->kernels().fold_shared(device_->stream(), reduction, stretches, offsets);
}

Status Ring::abort_waits(CUstream aside) {
  // The last batch is not done yet.
  if (device_->driver().cuStreamQuery(aside) == CUDA_ERROR_NOT_READY) return Status::ok();
  std::vector<CUstreamBatchMemOpParams> words;
  for (const Phase phase : {Phase::kPacked, Phase::kFolded, Phase::kFreed}) {
    for (std::size_t half = 0; half < kHalves; ++half) {
      for (std::size_t step = 1; step < size(); ++step)
        words.push_back(written(word(group_rank_, phase, half, group_rank_at(step)), 1));
    }
  }
  return enqueue(aside, words);
}

Status Ring::finalize() {
  for (std::size_t half = 0; half < kHalves; ++half) {
    for (std::size_t step = 1; step < size(); ++step) see(Phase::kFreed, half, group_rank_at(step));
  }
  return flush();
}

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
