// Backing off: how long to spin for an event that is expected soon, and how often to retry what has
// failed.
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

// The policy of a spin loop: again() is called between two polls, and returns false when the loop
// should end. It reads the clock only occasionally.
class Spin {
 public:
  // Whether to keep the core between two polls or to yield it.
  enum class Between { kPause, kYield };

  Spin(Between between, std::chrono::nanoseconds longest)
      : between_(between), longest_ns_(longest.count()) {}
  Spin(Between between, unsigned looks) : between_(between), most_polls_(looks) {}

  // Before a sleep that an event ends. With spare cores: longer than a peer needs to return from
  // its last call, shorter than twice the cost of a sleep and a wake-up. Without spare cores: yield
  // a few times first. (Four ranks on two cores, 64 KiB: 83 us when they slept at once, 54 us with
  // 8 yields, 50 us with 16, 62 us with 32.)
  static Spin before_sleep(bool spare_cores) {
    return spare_cores ? Spin(Between::kPause, std::chrono::microseconds(50))
                       : Spin(Between::kYield, 16U);
  }
  // For callers with other work, with spare cores: no longer than waking another thread takes.
  static Spin in_passing() { return {Between::kPause, std::chrono::microseconds(5)}; }
  static Spin none() { return {Between::kPause, 0U}; }

  bool again() {
    if (polls_ >= most_polls_) return false;
    ++polls_;
    if (between_ == Between::kYield) {
      std::this_thread::yield();
    } else {
      spin_pause();
    }
    if (polls_ % kPollsPerClock != 0 || longest_ns_ < 0) return true;
    const std::int64_t now = now_ns();
    if (until_ns_ == 0) until_ns_ = now + longest_ns_;
    if (now >= until_ns_) polls_ = most_polls_;
    return polls_ < most_polls_;
  }
  void restart() {
    polls_ = 0;
    until_ns_ = 0;
  }

 private:
  static constexpr unsigned kPollsPerClock = 8;

  Between between_;
  unsigned most_polls_ = std::numeric_limits<unsigned>::max();
  std::int64_t longest_ns_ = -1;  // negative: number of polls
  unsigned polls_ = 0;
  std::int64_t until_ns_ = 0;
};

// For events that can only be polled, because nothing wakes a sleeper (a driver's event, NCCL's
// state, a message of MPI): spin first, then nap between polls.
class Polling {
 public:
  // The first naps are short.
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

// Exponential back-off: after consecutive failures an action is tried less often. Any thread.
// Counts are relaxed: a try too many or too few does no harm.
class Backoff {
 public:
  // True if the action is due: every time, then every second, fourth, ... 64th time.
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
  std::atomic<unsigned> misses_{0};  // consecutive
};

}  // namespace hvd
