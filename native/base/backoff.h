// Exponential back-off: what has been in vain several times in a row is tried less and less often.
#pragma once

#include <algorithm>
#include <atomic>

namespace hvd {

// Any thread. Counts are relaxed: a try too many or too few does no harm.
class Backoff {
 public:
  // Whether to try this time: every time, then every second, fourth, ... 64th one.
  bool due() {
    const unsigned every = 1U << misses_.load(std::memory_order_relaxed);
    return (calls_.fetch_add(1, std::memory_order_relaxed) & (every - 1)) == 0;
  }
  void report(bool in_vain) {
    const unsigned misses = misses_.load(std::memory_order_relaxed);
    misses_.store(in_vain ? std::min(misses + 1, kMostMisses) : 0, std::memory_order_relaxed);
  }

 private:
  static constexpr unsigned kMostMisses = 6;

  std::atomic<unsigned> calls_{0};
  std::atomic<unsigned> misses_{0};  // in a row
};

}  // namespace hvd
