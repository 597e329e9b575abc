#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <ctime>

namespace hvd {

void futex_wait(Word& word, std::uint32_t seen, std::chrono::nanoseconds longest,
                std::uint32_t waiters) {
  // The variant with bits takes a point in time, on the monotonic clock, not a duration.
  constexpr std::int64_t kLongest = std::int64_t{86'400} * 1'000'000'000;
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t end = std::clamp<std::int64_t>(longest.count(), 0, kLongest) + time.tv_nsec;
  time.tv_sec += static_cast<time_t>(end / 1'000'000'000);
  time.tv_nsec = static_cast<long>(end % 1'000'000'000);
  // Not FUTEX_PRIVATE: the waker may be another process.
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_BITSET, seen, &time,
            nullptr, waiters);
}

void futex_wake_all(Word& word, std::uint32_t waiters) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_BITSET, INT_MAX, nullptr,
            nullptr, waiters);
}

}  // namespace hvd
