// The loops of the kernels, for devices and for the host (element.cuh). Every thread reads a lane
// of all inputs before it writes that lane, and nobody else touches it: outputs may be inputs.
//   access   how many lanes are read or written at once: Wide 16 bytes, at a 16-byte boundary,
//            or One
//   step     the accesses of one thread that are under way at the same time
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/functions.h"

namespace hvd::cuda {

// Which of the threads that do one call this is.
struct Where {
  unsigned block;
  unsigned blocks;
  unsigned thread;  // of kThreads
};

template <typename T>
struct One {
  static constexpr unsigned kLanes = 1;
  static HVD_BOTH void load(T (&lanes)[1], const T* from) { lanes[0] = *from; }
  static HVD_BOTH void store(T* to, const T (&lanes)[1]) { *to = lanes[0]; }
};

struct alignas(kVectorBytes) Vector {
  std::uint32_t words[4];
};

template <typename T>
struct Wide {
  static constexpr unsigned kLanes = kVectorBytes / sizeof(T);
  static HVD_BOTH void load(T (&lanes)[kLanes], const T* from) {
#ifdef __CUDA_ARCH__
    const Vector vector = *reinterpret_cast<const Vector*>(from);
    memcpy(lanes, &vector, sizeof vector);
#else
    memcpy(lanes, from, sizeof lanes);
#endif
  }
  static HVD_BOTH void store(T* to, const T (&lanes)[kLanes]) {
#ifdef __CUDA_ARCH__
    Vector vector;
    memcpy(&vector, lanes, sizeof vector);
    *reinterpret_cast<Vector*>(to) = vector;
#else
    memcpy(to, lanes, sizeof lanes);
#endif
  }
};

struct Lanes {
  std::uint64_t begin, end;
};

// The lanes of one thread, kStep accesses at a time.
template <typename Access, unsigned kStep, typename Work>
HVD_BOTH void sweep(const Work& work, const Lanes& lanes, unsigned thread) {
  constexpr std::uint64_t kStride = std::uint64_t{kThreads} * Access::kLanes;
  for (std::uint64_t at = lanes.begin + std::uint64_t{thread} * Access::kLanes; at < lanes.end;
       at += kStep * kStride)
    work.template step<Access, kStep>(at, lanes.end);
}

// Tile number `tile` of a piece that begins `skew` lanes beyond a boundary. Where not everything is
// alike, or beside the boundaries, it goes lane by lane.
template <typename T, unsigned kStep, typename Work>
HVD_BOTH void run_tile(const Work& work, std::uint64_t tile, std::uint64_t count, unsigned skew,
                       bool alike, unsigned thread) {
  constexpr unsigned kLanes = Wide<T>::kLanes, kTile = kTileBytes / sizeof(T);
  const std::uint64_t begin = tile == 0 ? 0 : tile * kTile - skew;
  const std::uint64_t full = (tile + 1) * kTile - skew, end = full < count ? full : count;
  std::uint64_t first = begin, last = begin;  // what lies between is Wide
  if (alike) {
    const std::uint64_t up = (begin + skew + kLanes - 1) / kLanes * kLanes - skew;
    const std::uint64_t down = (end + skew) / kLanes * kLanes;
    first = up < end ? up : end;
    last = down > first + skew ? down - skew : first;
  }
  sweep<Wide<T>, kStep>(work, {first, last}, thread);
  HVD_ROLLED
  for (unsigned side = 0; side < 2; ++side)
    sweep<One<T>, 8>(work, side == 0 ? Lanes{begin, first} : Lanes{last, end}, thread);
}

// Folds.

// Where a fold's inputs and outputs are. All outputs get the same.
template <typename Format>
struct Apart {
  using Stored = typename Format::Stored;
  const FoldCall& call;

  HVD_BOTH std::uint32_t inputs() const { return call.inputs; }
  HVD_BOTH std::uint32_t outputs() const { return 1; }
  HVD_BOTH const Stored* input(std::uint32_t k) const {
    return static_cast<const Stored*>(call.input[k]);
  }
  HVD_BOTH Stored* output(std::uint32_t) const { return static_cast<Stored*>(call.out); }
  HVD_BOTH Stored prepared(Stored value) const { return value; }
};
template <typename Format>
struct Alike {
  using Stored = typename Format::Stored;
  const SharedCall& call;
  void* own;

  HVD_BOTH std::uint32_t inputs() const { return call.members; }
  HVD_BOTH std::uint32_t outputs() const { return call.members; }
  HVD_BOTH const Stored* input(std::uint32_t k) const { return output(k); }
  HVD_BOTH Stored* output(std::uint32_t k) const {
    return reinterpret_cast<Stored*>(static_cast<char*>(own) + call.offset[k]);
  }
  HVD_BOTH Stored prepared(Stored value) const {
    return is_one(call.before) ? value : rescaled<Format>(value, call.before);
  }
};

template <typename Format, typename Op, typename Memory>
struct Fold {
  using Stored = typename Format::Stored;
  using FastPath = typename Format::FastPath;
  const Memory memory;

  // What it has reckoned so far takes 16 registers, of the widest formats 32.
  static constexpr unsigned kRegisters = Wide<Stored>::kLanes * ((sizeof(FastPath) + 3) / 4);
  static constexpr unsigned kStep = kRegisters < 16 ? 16 / kRegisters : 1;

  template <typename Access, unsigned kSteps>
  HVD_BOTH void step(std::uint64_t at, std::uint64_t end) const {
    constexpr std::uint64_t kStride = std::uint64_t{kThreads} * Access::kLanes;
    FastPath value[kSteps][Access::kLanes];
    HVD_UNROLL
    for (unsigned s = 0; s < kSteps; ++s) {
      Stored in[Access::kLanes] = {};
      if (at + s * kStride < end) Access::load(in, memory.input(0) + at + s * kStride);
      HVD_UNROLL
      for (unsigned i = 0; i < Access::kLanes; ++i) value[s][i] = wide(in[i]);
    }
    for (std::uint32_t k = 1; k < memory.inputs(); ++k) {
      Stored in[kSteps][Access::kLanes] = {};
      HVD_UNROLL
      for (unsigned s = 0; s < kSteps; ++s)
        if (at + s * kStride < end) Access::load(in[s], memory.input(k) + at + s * kStride);
      HVD_UNROLL
      for (unsigned s = 0; s < kSteps; ++s) {
        HVD_UNROLL
        for (unsigned i = 0; i < Access::kLanes; ++i)
          value[s][i] = Op::apply(value[s][i], wide(in[s][i]));
      }
    }
    HVD_UNROLL
    for (unsigned s = 0; s < kSteps; ++s)
      if (at + s * kStride < end) store<Access>(value[s], at + s * kStride);
  }

 private:
  HVD_BOTH FastPath wide(Stored value) const { return Format::widen(memory.prepared(value)); }
  template <typename Access>
  HVD_BOTH void store(const FastPath (&value)[Access::kLanes], std::uint64_t at) const {
    Stored out[Access::kLanes];
    HVD_UNROLL
    for (unsigned i = 0; i < Access::kLanes; ++i)
      out[i] = Format::narrow(scaled(value[i], memory.call.after));
    for (std::uint32_t k = 0; k < memory.outputs(); ++k) Access::store(memory.output(k) + at, out);
  }
};

template <typename Format, typename Op>
HVD_BOTH void fold_lanes(const FoldCall& call, const Where& where) {
  using Stored = typename Format::Stored;
  using Work = Fold<Format, Op, Apart<Format>>;
  const Work work{{call}};
  const std::uint64_t tiles = tiles_of(call.out, call.lanes, sizeof(Stored));
  const auto skew = static_cast<unsigned>(beyond_boundary(call.out) / sizeof(Stored));
  for (std::uint64_t tile = where.block; tile < tiles; tile += where.blocks)
    run_tile<Stored, Work::kStep>(work, tile, call.lanes, skew, call.alike != 0, where.thread);
}

// The last piece whose tiles begin at or before `tile`.
template <typename Call>
HVD_BOTH std::uint32_t piece_of(const Call& call, std::uint32_t tile) {
  std::uint32_t low = 0, high = call.pieces;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (call.piece[middle].first_tile <= tile ? low : high) = middle;
  }
  return low;
}

template <typename Format, typename Op>
HVD_BOTH void fold_shared_lanes(const SharedCall& call, const Where& where) {
  using Stored = typename Format::Stored;
  using Work = Fold<Format, Op, Alike<Format>>;
  for (std::uint32_t tile = where.block; tile < call.tiles; tile += where.blocks) {
    const SharedPiece& piece = call.piece[piece_of(call, tile)];
    const unsigned beyond = beyond_boundary(piece.own);
    const bool alike = call.alike != 0 && beyond % sizeof(Stored) == 0;
    run_tile<Stored, Work::kStep>(Work{{call, piece.own}}, tile - piece.first_tile, piece.lanes,
                                  static_cast<unsigned>(beyond / sizeof(Stored)), alike,
                                  where.thread);
  }
}

// Moves.

struct Copied {
  template <typename Format>
  static HVD_BOTH typename Format::Stored apply(typename Format::Stored value, const MoveCall&) {
    return value;
  }
};
struct Scaled {
  template <typename Format>
  static HVD_BOTH typename Format::Stored apply(typename Format::Stored value,
                                                const MoveCall& call) {
    if (!is_one(call.first)) value = rescaled<Format>(value, call.first);
    if (!is_one(call.second)) value = rescaled<Format>(value, call.second);
    return value;
  }
};

template <typename Format, typename Way>
struct Move {
  using Stored = typename Format::Stored;
  const MoveCall& call;
  const Stored* in;
  Stored* out;

  template <typename Access, unsigned kSteps>
  HVD_BOTH void step(std::uint64_t at, std::uint64_t end) const {
    constexpr std::uint64_t kStride = std::uint64_t{kThreads} * Access::kLanes;
    Stored value[kSteps][Access::kLanes] = {};
    HVD_UNROLL
    for (unsigned s = 0; s < kSteps; ++s)
      if (at + s * kStride < end) Access::load(value[s], in + at + s * kStride);
    HVD_UNROLL
    for (unsigned s = 0; s < kSteps; ++s) {
      HVD_UNROLL
      for (unsigned i = 0; i < Access::kLanes; ++i)
        value[s][i] = Way::template apply<Format>(value[s][i], call);
      if (at + s * kStride < end) Access::store(out + at + s * kStride, value[s]);
    }
  }
};

template <typename Format, typename Way>
HVD_BOTH void move_lanes(const MoveCall& call, const Where& where) {
  using Stored = typename Format::Stored;
  for (std::uint32_t tile = where.block; tile < call.tiles; tile += where.blocks) {
    const MovedPiece& piece = call.piece[piece_of(call, tile)];
    const Move<Format, Way> work{call, static_cast<const Stored*>(piece.in),
                                 static_cast<Stored*>(piece.out)};
    const unsigned beyond = beyond_boundary(piece.out);
    const bool alike = beyond == beyond_boundary(piece.in) && beyond % sizeof(Stored) == 0;
    run_tile<Stored, 4>(work, tile - piece.first_tile, piece.lanes,
                        static_cast<unsigned>(beyond / sizeof(Stored)), alike, where.thread);
  }
}

// The identity.

struct Fill {
  using Stored = std::uint8_t;
  const FillCall& call;

  template <typename Access, unsigned kSteps>
  HVD_BOTH void step(std::uint64_t at, std::uint64_t end) const {
    Stored* const out = static_cast<Stored*>(call.out);
    for (unsigned s = 0; s < kSteps; ++s, at += std::uint64_t{kThreads} * Access::kLanes) {
      if (at >= end) return;
      Stored value[Access::kLanes];
      const unsigned from = beyond_boundary(out + at);  // 0 where the access is Wide
      HVD_UNROLL
      for (unsigned i = 0; i < Access::kLanes; ++i)
        value[i] = call.pattern[(from + i) % kVectorBytes];
      Access::store(out + at, value);
    }
  }
};

HVD_BOTH void fill_bytes(const FillCall& call, const Where& where) {
  const std::uint64_t tiles = tiles_of(call.out, call.bytes, 1);
  for (std::uint64_t tile = where.block; tile < tiles; tile += where.blocks)
    run_tile<std::uint8_t, 4>(Fill{call}, tile, call.bytes, beyond_boundary(call.out), true,
                              where.thread);
}

}  // namespace hvd::cuda
