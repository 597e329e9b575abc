// The machine's limit: an allreduce written by hand for one host, without links, plans or
// errors. Private buffers, copied in and out through shared windows that stay in the caches:
// a member copies every slice but its own into a window, folds its own slice from all windows,
// writes the result to its buffer and a window, and copies the others' results out. Two windows
// deep.
#pragma once

#include <atomic>
#include <cstddef>

namespace hvd::bench {

// Shared by all ranks; zeroed before they start.
struct StagedMemory {
  static constexpr std::size_t kMostRanks = 16;
  static constexpr std::size_t kSlice = 16384;  // floats of one slice of a window
  static constexpr std::size_t kDepth = 2;
  struct Progress {
    alignas(64) std::atomic<long> windows{0};
  };
  Progress in[kMostRanks], folded[kMostRanks], out[kMostRanks];
  alignas(64) float windows[kDepth][kMostRanks + 1][kMostRanks * kSlice];
};

class Staged {
 public:
  Staged(StagedMemory& memory, int rank, int size, bool spin)
      : memory_(memory), rank_(rank), size_(size), spin_(spin) {}
  void allreduce(float* values, std::size_t count);

 private:
  // Where the slices of one window lie.
  struct Window {
    std::size_t begin = 0, count = 0;
    std::size_t slice = 0;  // the longest
    std::size_t first(int rank) const;
    std::size_t length(int rank) const;
  };
  void copy_in(const float* values, const Window& window, std::size_t depth);
  void fold(float* values, const Window& window, std::size_t depth, long number);
  void copy_out(float* values, const Window& window, std::size_t depth, long number);
  void wait(const std::atomic<long>& counter, long target) const;

  StagedMemory& memory_;
  const int rank_, size_;
  const bool spin_;
  long done_ = 0;  // windows, since the start
};

}  // namespace hvd::bench
