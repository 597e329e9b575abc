// Arena: device memory through which the members of a group communicate.
//   arena   memory of one member for one group, on its device, accessible to all members
//   half    one of two equal pieces of it, for elements, used alternately by rounds of operations
//   word    32 bits, 0 or 1: a signal of one peer (ring.h), in the arena of the waiting member
//   phase   meaning of a word for a half
//             packed   the peer's half holds its inputs
//             folded   the peer's half holds the result of the peer's chunk
//             freed    the peer no longer reads this arena's half; initially 1
// Layout: words by (phase, half, group rank of the peer), then the halves. It depends only on the
// numbers of members and bytes, so all members know the layout of all arenas.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/abort.h"
#include "base/status.h"
#include "cuda/device/device.h"
#include "cuda/group/ipc_buffer.h"

namespace hvd::cuda {

enum class Phase : std::uint8_t { kPacked = 0, kFolded = 1, kFreed = 2 };
constexpr std::size_t kPhases = 3;
constexpr std::size_t kHalves = 2;

class ArenaShape {
 public:
  ArenaShape(std::size_t bytes, std::size_t members);

  std::size_t half_bytes() const { return half_bytes_; }
  // A chunk's bytes of a half with one chunk per member: a multiple of 16. 0: too few bytes.
  std::size_t room() const { return half_bytes_ / members_ / 16 * 16; }
  // From the beginning of the arena.
  std::size_t half(std::size_t number) const { return words_bytes_ + number * half_bytes_; }
  std::size_t word(Phase phase, std::size_t half, std::size_t group_rank) const {
    const std::size_t number = (static_cast<std::size_t>(phase) * kHalves + half) * members_;
    return (number + group_rank) * sizeof(std::uint32_t);
  }

 private:
  std::size_t members_, words_bytes_, half_bytes_;
};

class Arena {
 public:
  // Waits for the device until the words are initialised, or for the abort.
  static Result<std::unique_ptr<Arena>> make(const std::shared_ptr<Device>& device,
                                             std::size_t bytes, std::size_t members,
                                             const Abort& abort);
  // Peers must not use it any more: see DeviceBackend::finalize() and part().
  ~Arena();

  const IpcBuffer& memory() const { return *memory_; }
  std::byte* base() const;
  // A stream that never waits: its priority differs from that of the device's stream, so that the
  // two never share a hardware queue.
  CUstream aside() const { return aside_; }

 private:
  Arena(std::shared_ptr<Device> device, std::size_t bytes);
  Status allocate();
  Status open_stream();
  Status write_words(const ArenaShape& shape, std::size_t members, const Abort& abort);

  std::shared_ptr<Device> device_;
  std::size_t bytes_;
  std::shared_ptr<IpcBuffer> memory_;
  CUstream aside_ = nullptr;
};

// Packing plan: layout of an operation's elements in a half of an arena, computed
// identically on all ranks without messages.
//   chunk   the data that one member folds or receives: a list of pieces of tensors
//   room    a chunk's bytes of a half in every round; a multiple of 16
//   round   the data that fit into the rooms of all chunks at once
//   share   a piece of a tensor in its chunk's room, in one round
// A share has the same offset modulo 16 bytes as in its tensor: packing and unpacking then move 16
// bytes at a time, whatever was fused and however it is split. The gaps (less than 16 bytes each)
// are folded, too, and never read.

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
