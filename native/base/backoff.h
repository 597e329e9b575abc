// Backing off: how long one looks again and again for what comes soon, and how often one tries what
// has been in vain.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>

#include "base/deadline.h"

namespace hvd {

// A hint to the core that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The policy of a spin loop: again() stands between two looks, and says when it has been long
// enough. The clock is read now and then only.
class Spin {
 public:
  // Either stays on the core between two looks, or lets others have it.
  enum class Between { kPause, kYield };

  Spin(Between between, std::chrono::nanoseconds longest)
      : between_(between), longest_ns_(longest.count()) {}
  Spin(Between between, unsigned looks) : between_(between), most_looks_(looks) {}

  // Ahead of a sleep that is ended by whoever has something. Where there are cores to spare: longer
  // than a peer needs to come out of its last call, shorter than a sleep and a wake-up cost twice.
  // Where there are not, the others have this core a few times first. (Four ranks on two cores, 64
  // KiB: 83 us when they slept at once, 54 us with 8 times, 50 us with 16, 62 us with 32.)
  static Spin before_sleep(bool spare_cores) {
    return spare_cores ? Spin(Between::kPause, std::chrono::microseconds(50))
                       : Spin(Between::kYield, 16U);
  }
  // For who has other work, and with cores to spare: no longer than it costs to wake another
  // thread.
  static Spin in_passing() { return {Between::kPause, std::chrono::microseconds(5)}; }
  static Spin none() { return {Between::kPause, 0U}; }

  bool again() {
    if (looks_ >= most_looks_) return false;
    ++looks_;
    if (between_ == Between::kYield) {
      std::this_thread::yield();
    } else {
      spin_pause();
    }
    if (looks_ % kLooksPerClock != 0 || longest_ns_ < 0) return true;
    const std::int64_t now = now_ns();
    if (until_ns_ == 0) until_ns_ = now + longest_ns_;
    if (now >= until_ns_) looks_ = most_looks_;
    return looks_ < most_looks_;
  }
  void restart() {
    looks_ = 0;
    until_ns_ = 0;
  }

 private:
  static constexpr unsigned kLooksPerClock = 8;

  Between between_;
  unsigned most_looks_ = std::numeric_limits<unsigned>::max();
  std::int64_t longest_ns_ = -1;  // negative: as many looks as that
  unsigned looks_ = 0;
  std::int64_t until_ns_ = 0;
};

// For what can only be asked for again and again, because nothing wakes a sleeper (a driver's
// event, NCCL's state, a message of MPI): a spin first, then naps in between.
class Polling {
 public:
  // The naps are short for the first while.
  Polling(const Spin& first, std::chrono::nanoseconds nap, std::chrono::nanoseconds later_nap)
      : spin_(first), nap_(nap), later_nap_(later_nap) {}
  static Polling of_device() {
    using std::chrono::microseconds;
    return {Spin(Spin::Between::kPause, 200U), microseconds(10), microseconds(100)};
  }

  void pause() {
    if (spin_.again()) return;
    std::this_thread::sleep_for(naps_ < kShortNaps ? nap_ : later_nap_);
    ++naps_;
  }

 private:
  static constexpr unsigned kShortNaps = 200;

  Spin spin_;
  std::chrono::nanoseconds nap_, later_nap_;
  unsigned naps_ = 0;
};

// Exponential back-off: what has been in vain several times in a row is tried less and less often.
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
