// The functions of kernels.cu by name, and what each is given: one structure by value, of at most
// the 4 KB that every driver passes. A grid is one row of blocks of kThreads threads.
//   lane   an element, or one of the two parts of a complex one
//   tile   what a block does at once: kTileBytes of a piece, at 16-byte boundaries of its output
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/element.cuh"

namespace hvd::cuda {

constexpr unsigned kThreads = 256;
constexpr unsigned kTileBytes = 16384;
constexpr unsigned kVectorBytes = 16;  // of one access

HVD_BOTH unsigned beyond_boundary(const void* address) {
  return static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(address) % kVectorBytes);
}

// How many tiles a piece has. Its first is shorter by what its output lies beyond a boundary.
HVD_BOTH std::uint64_t tiles_of(const void* out, std::uint64_t lanes, unsigned lane_bytes) {
  const std::uint64_t of_tile = kTileBytes / lane_bytes;
  return (lanes + beyond_boundary(out) / lane_bytes + of_tile - 1) / of_tile;
}

constexpr std::size_t kMostInputs = 64;

// out = the inputs, folded from the left, then times after.by, divided by after.over (floats, and
// the means of integers).
struct FoldCall {
  void* out;
  Ratio after;
  std::uint64_t lanes;
  std::uint32_t inputs;
  std::uint32_t alike;  // all pointers are equally far from a 16-byte boundary
  const void* input[kMostInputs];
};

// Every piece: out = in, scaled by `first`, stored, scaled by `second`.
struct MovedPiece {
  const void* in;
  void* out;
  std::uint32_t lanes;
  std::uint32_t first_tile;  // tiles of the pieces before it
};
constexpr std::size_t kMostMoved = 168;  // pieces
struct MoveCall {
  Ratio first, second;
  std::uint32_t pieces;
  std::uint32_t tiles;  // of all pieces
  MovedPiece piece[kMostMoved];
};

// Memory that all members have alike: element x of member k's lies at x + offset[k]. Every piece of
// it: all members' elements, each scaled by `before`, folded from the left in the order of the
// offsets, scaled by `after`, into all members' memory.
struct SharedPiece {
  void* own;
  std::uint32_t lanes;
  std::uint32_t first_tile;  // tiles of the pieces before it
};
constexpr std::size_t kMostShared = 200;  // pieces
struct SharedCall {
  Ratio before, after;
  std::uint32_t members;
  std::uint32_t alike;  // the offsets are multiples of 16 bytes
  std::uint32_t pieces;
  std::uint32_t tiles;  // of all pieces
  std::int64_t offset[kMostInputs];
  SharedPiece piece[kMostShared];
};

// The byte at address a becomes pattern[a % 16].
struct FillCall {
  void* out;
  std::uint64_t bytes;
  std::uint8_t pattern[kVectorBytes];
};

// An allreduce of one tensor by the persistent ring (ring.cuh).
struct RingCall {
  const void* in;
  void* out;
  std::uint64_t count;  // elements
  Ratio before, after;
  std::byte* own;  // memory of this rank, and of its neighbours
  std::byte* left;
  std::byte* right;
  std::uint32_t group_rank, size;
  std::uint32_t slots, slot_bytes;  // of a block
};

static_assert(sizeof(FoldCall) <= 4096 && sizeof(MoveCall) <= 4096 && sizeof(SharedCall) <= 4096);

// X(name, format, operator). Sums and products of signed integers are those of unsigned ones, sums
// of complex numbers those of their parts.
#define HVD_CUDA_FOLDS(X)                               \
  X(add_u8, Plain<std::uint8_t>, Add)                   \
  X(add_u16, Plain<std::uint16_t>, Add)                 \
  X(add_u32, Plain<std::uint32_t>, Add)                 \
  X(add_u64, Plain<std::uint64_t>, Add)                 \
  X(add_f16, Half, Add)                                 \
  X(add_bf16, Brain, Add)                               \
  X(add_f32, Plain<float>, Add)                         \
  X(add_f64, Plain<double>, Add)                        \
  X(mean_u8, Exact<std::uint8_t>, Add)                  \
  X(mean_i8, Exact<std::int8_t>, Add)                   \
  X(mean_u16, Exact<std::uint16_t>, Add)                \
  X(mean_i16, Exact<std::int16_t>, Add)                 \
  X(mean_i32, Exact<std::int32_t>, Add)                 \
  X(mean_i64, Exact<std::int64_t>, Add)                 \
  X(multiply_u8, Plain<std::uint8_t>, Multiply)         \
  X(multiply_u16, Plain<std::uint16_t>, Multiply)       \
  X(multiply_u32, Plain<std::uint32_t>, Multiply)       \
  X(multiply_u64, Plain<std::uint64_t>, Multiply)       \
  X(multiply_f16, Half, Multiply)                       \
  X(multiply_bf16, Brain, Multiply)                     \
  X(multiply_f32, Plain<float>, Multiply)               \
  X(multiply_f64, Plain<double>, Multiply)              \
  X(multiply_c64, Plain<Two<float>>, ComplexMultiply)   \
  X(multiply_c128, Plain<Two<double>>, ComplexMultiply) \
  X(least_u8, Plain<std::uint8_t>, Least)               \
  X(least_i8, Plain<std::int8_t>, Least)                \
  X(least_u16, Plain<std::uint16_t>, Least)             \
  X(least_i16, Plain<std::int16_t>, Least)              \
  X(least_i32, Plain<std::int32_t>, Least)              \
  X(least_i64, Plain<std::int64_t>, Least)              \
  X(least_f16, Half, Least)                             \
  X(least_bf16, Brain, Least)                           \
  X(least_f32, Plain<float>, Least)                     \
  X(least_f64, Plain<double>, Least)                    \
  X(most_u8, Plain<std::uint8_t>, Most)                 \
  X(most_i8, Plain<std::int8_t>, Most)                  \
  X(most_u16, Plain<std::uint16_t>, Most)               \
  X(most_i16, Plain<std::int16_t>, Most)                \
  X(most_i32, Plain<std::int32_t>, Most)                \
  X(most_i64, Plain<std::int64_t>, Most)                \
  X(most_f16, Half, Most)                               \
  X(most_bf16, Brain, Most)                             \
  X(most_f32, Plain<float>, Most)                       \
  X(most_f64, Plain<double>, Most)                      \
  X(or_bool, Truth, Or)                                 \
  X(and_bool, Truth, And)

// X(name, format, loop): Scaled by the call's ratios, or Copied whatever they are.
#define HVD_CUDA_MOVES(X)                    \
  X(scale_u8, Plain<std::uint8_t>, Scaled)   \
  X(scale_i8, Plain<std::int8_t>, Scaled)    \
  X(scale_u16, Plain<std::uint16_t>, Scaled) \
  X(scale_i16, Plain<std::int16_t>, Scaled)  \
  X(scale_i32, Plain<std::int32_t>, Scaled)  \
  X(scale_i64, Plain<std::int64_t>, Scaled)  \
  X(scale_f16, Half, Scaled)                 \
  X(scale_bf16, Brain, Scaled)               \
  X(scale_f32, Plain<float>, Scaled)         \
  X(scale_f64, Plain<double>, Scaled)        \
  X(scale_bool, Truth, Scaled)               \
  X(copy_1, Plain<std::uint8_t>, Copied)     \
  X(copy_2, Plain<std::uint16_t>, Copied)    \
  X(copy_4, Plain<std::uint32_t>, Copied)    \
  X(copy_8, Plain<std::uint64_t>, Copied)

// X(name, format, operator): sums of gradients, in memory that is shared and by the ring. The order
// is for_float_sums' (kernels.cc).
#define HVD_CUDA_FLOAT_SUMS(X, way) \
  X(way##_f16, Half, Add)           \
  X(way##_bf16, Brain, Add)         \
  X(way##_f32, Plain<float>, Add)   \
  X(way##_f64, Plain<double>, Add)

}  // namespace hvd::cuda
