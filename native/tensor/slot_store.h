// Writes of memory that another core reads next (a slot of a link). Terms.
//   ordinary   through this core's caches. Each line must first be fetched from the reader's cache:
//              fast if both share a cache, five to eight times slower than memory otherwise
//   streaming  past the caches, to memory: the same everywhere, slower than a shared cache
// Which of the two is better depends on where the two ranks run, which changes while they do (on a
// virtual machine too). So every long ordinary write is timed; if they are slow, writes
// are streamed, and ordinary writes are retried occasionally.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hvd {

class StoreChoice {
 public:
  // Shorter writes are ordinary and not timed.
  static constexpr std::size_t kLeastBytes = 8192;

  bool streams(std::int64_t now_ns) const { return slow_ >= kEnough && now_ns < try_at_ns_; }
  // Record an ordinary write.
  void record(std::size_t bytes, std::int64_t ns, std::int64_t now_ns) {
    // An interrupted write looks slow, too, so a single one does not count.
    const bool slow = static_cast<double>(ns) * kSlowBytesPerNs > static_cast<double>(bytes);
    slow_ = std::clamp(slow_ + (slow ? 1 : -2), 0, kEnough + 1);
    try_at_ns_ = now_ns + kTryEveryNs;
  }

 private:
  // GB/s. Measured: caches apart 1.6 to 2.3, a shared one 6 to 11, tensors from memory 3.5 to 5.
  static constexpr double kSlowBytesPerNs = 2.75;
  static constexpr std::int64_t kTryEveryNs = 10'000'000;
  static constexpr int kEnough = 2;

  int slow_ = 0;
  std::int64_t try_at_ns_ = 0;
};

// One per reader, used by one thread at a time.
class SlotStore {
 public:
  // to[i] = from[i]; they do not overlap.
  void copy(void* to, const void* from, std::size_t bytes);

 private:
  StoreChoice choice_;
};

}  // namespace hvd
