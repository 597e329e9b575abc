// Packing plan: layout of an operation's elements in a half of an arena (arena.h), computed
// identically on all ranks without messages.
//   chunk   the data that one member folds or receives: a list of pieces of tensors
//   room    a chunk's bytes of a half in every round; a multiple of 16
//   round   the data that fit into the rooms of all chunks at once
//   share   a piece of a tensor in its chunk's room, in one round
// A share has the same offset modulo 16 bytes as in its tensor: packing and unpacking then move 16
// bytes at a time, whatever was fused and however it is split. The gaps (less than 16 bytes each)
// are folded, too, and never read.
#pragma once

#include <cstddef>
#include <vector>

namespace hvd::cuda {

struct PackedPiece {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  // elements
  std::size_t at = 0;     // bytes from the beginning of the room
};

class PackingPlan {
 public:
  // width: bytes of an element, 1 to 16, a power of two.
  PackingPlan(std::size_t width, std::size_t chunks, std::size_t room);

  // The next elements of the chunk: at in and out (nullptr stays nullptr), `before` elements after
  // the begin of their tensor.
  void add(std::size_t chunk, const void* in, void* out, std::size_t before, std::size_t count);

  // Of the longest chunk, and of each.
  std::size_t rounds() const;
  std::size_t rounds(std::size_t chunk) const { return chunks_[chunk].size(); }
  // Empty after the end of the chunk.
  const std::vector<PackedPiece>& shares(std::size_t chunk, std::size_t round) const;
  // Bytes from the beginning of the room to the end of the last share.
  std::size_t extent(std::size_t chunk, std::size_t round) const;

 private:
  using Round = std::vector<PackedPiece>;

  std::size_t width_, room_;
  std::vector<std::vector<Round>> chunks_;
  Round nothing_;
};

}  // namespace hvd::cuda
