// Deadlines on the monotonic clock. Every wait below the bindings has one, or watches an abort.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>

namespace hvd {

using Clock = std::chrono::steady_clock;

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

class Deadline {
 public:
  // Practically forever, but arithmetic on it cannot overflow.
  static Deadline never() { return Deadline(std::chrono::hours(24 * 365)); }
  static Deadline after_seconds(double seconds) {
    if (seconds > 24.0 * 3600 * 365) return never();
    return Deadline(std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(seconds)));
  }
  explicit Deadline(std::chrono::nanoseconds from_now) : Deadline(now_ns(), from_now) {}
  // For callers that have just read the clock.
  Deadline(std::int64_t begin_ns, std::chrono::nanoseconds from_begin)
      : at_(Clock::duration(std::chrono::nanoseconds(begin_ns)) + from_begin) {}

  // Also expires as soon as this descriptor is readable, when waiting has become useless. Code that
  // sleeps until the deadline must poll the descriptor, too (-1: none).
  Deadline or_readable(int descriptor) const {
    Deadline sooner = *this;
    sooner.descriptor_ = descriptor;
    return sooner;
  }
  pollfd descriptor() const { return {descriptor_, POLLIN, 0}; }

  bool expired() const { return Clock::now() >= at_ || called_off(); }
  std::chrono::nanoseconds remaining() const {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(at_ - Clock::now());
    return left.count() > 0 ? left : std::chrono::nanoseconds(0);
  }
  // For poll(): rounded up, so that a wait never ends slightly too early and spins.
  int remaining_ms(int longest = 1000) const {
    const auto ms = (remaining().count() + 999'999) / 1'000'000;
    return ms > longest ? longest : static_cast<int>(ms);
  }

 private:
  bool called_off() const {
    pollfd item = descriptor();
    return descriptor_ >= 0 && ::poll(&item, 1, 0) > 0;
  }

  Clock::time_point at_;
  int descriptor_ = -1;
};

}  // namespace hvd
