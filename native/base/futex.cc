#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hvd {

void futex_wait(Word& word, std::uint32_t seen, std::chrono::nanoseconds longest) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(longest.count() / 1'000'000'000);
  time.tv_nsec = static_cast<long>(longest.count() % 1'000'000'000);
  // Not FUTEX_PRIVATE: the waker may be another process.
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &time, nullptr,
            0);
}

void futex_wake_all(Word& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

}  // namespace hvd
