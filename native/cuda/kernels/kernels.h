// The kernels of one device, launched on a stream. What they do to an element is tensor/reduce.h's,
// to the last bit: the order of a fold, where it is rounded, no fused multiply-add. Nothing here
// waits. Pointers are device memory (of this device, or mapped from a peer's), aligned to their
// elements.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cuda/driver/driver.h"
#include "tensor/reduce.h"

namespace hvd::cuda {

// Of memory that all members of a group have alike.
struct Stretch {
  void* own = nullptr;
  std::size_t count = 0;  // elements
};

struct Piece {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  // elements
};

constexpr std::size_t kMostFolded = 64;  // inputs of one fold

// The persistent ring (ring.cuh): one kernel per rank, which must run at the same time. A rank's
// memory is zeroed once, before any operation; its first word is the abort: what is not 0 ends
// every operation that waits, and the ring.
struct RingShape {
  unsigned blocks = 32;             // as many as run at once, with those of ranks on that device
  unsigned slots = 4;               // of a block: a power of two, at least 2
  std::size_t slot_bytes = 65'536;  // a multiple of 16
  std::size_t bytes() const;        // of the memory
};
struct RingPart {
  const void* in = nullptr;  // may be out
  void* out = nullptr;
  std::size_t count = 0;  // elements, the same on all ranks
  int group_rank = 0, size = 1;
  void* own = nullptr;   // memories
  void* left = nullptr;  // of group ranks - 1 and + 1, as this device sees them
  void* right = nullptr;
};

class Kernels {
 public:
  // For the current context. The driver outlives it.
  static Result<std::unique_ptr<Kernels>> load(const Driver& driver);
  virtual ~Kernels() = default;

  // Every piece: out = round(before * in) (prescale), a copy where before is 1. One launch for many
  // pieces, whatever their lengths (packing and unpacking). in may be out; no other overlap.
  virtual Status prescale(CUstream stream, const Reduction& reduction,
                          const std::vector<Piece>& pieces) = 0;
  // As tensor/reduce.h's fold: out[i] = round(after * (inputs[0][i] op inputs[1][i] ...) /
  // divisor). 1 to kMostFolded inputs, prescaled already; out may be one of them.
  virtual Status fold(CUstream stream, const Reduction& reduction, void* out,
                      const std::vector<const void*>& inputs, std::size_t count) = 0;
  // Of every stretch: out = round(after * (before * in of offsets[0] op ...) / divisor), into all
  // members' memory, which is at own + offset bytes. One launch for many stretches. 1 to
  // kMostFolded offsets. kInvalidArgument for what sums_floats() refuses.
  virtual Status fold_shared(CUstream stream, const Reduction& reduction,
                             const std::vector<Stretch>& stretches,
                             const std::vector<std::ptrdiff_t>& offsets) = 0;
  // Sums and averages of floats.
  static bool sums_floats(const Reduction& reduction);
  // As tensor/reduce.h's scale: one rank alone.
  virtual Status scale(CUstream stream, const Reduction& reduction,
                       const std::vector<Piece>& pieces) = 0;
  virtual Status fill_identity(CUstream stream, Dtype dtype, ReduceOp op, void* out,
                               std::size_t count) = 0;
  // Sums and averages of floats; kInvalidArgument for the rest. All ranks with the same shape,
  // reductions that differ in `before` at most, and a size of 2 or more. The bytes are those of the
  // order in collective/backend/backend.h.
  virtual Status ring_allreduce(CUstream stream, const Reduction& reduction, const RingShape& shape,
                                const RingPart& part) = 0;
};

}  // namespace hvd::cuda
