// Threads that are inside of something that another thread wants to take away: it closes the
// guard and waits until they are out.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/futex.h"

namespace hvd {

class RundownGuard {
 public:
  // False: closed; there is nothing inside any more.
  bool enter() {
    if ((word_.fetch_add(1) & kClosed) == 0) return true;
    leave();
    return false;
  }
  void leave() {
    if (word_.fetch_sub(1) == (kClosed | 1U)) futex_wake_all(word_);
  }
  void close_and_wait() {
    word_.fetch_or(kClosed);
    for (std::uint32_t now = word_.load(); now != kClosed; now = word_.load()) {
      futex_wait(word_, now, std::chrono::seconds(1));
    }
  }

 private:
  static constexpr std::uint32_t kClosed = 1U << 31U;
  Word word_{0};
};

// While it lives the thread is inside; false when the guard was closed.
class RundownScope {
 public:
  explicit RundownScope(RundownGuard& guard) : rundown_guard_(guard), inside_(guard.enter()) {}
  ~RundownScope() {
    if (inside_) rundown_guard_.leave();
  }
  RundownScope(const RundownScope&) = delete;
  RundownScope& operator=(const RundownScope&) = delete;
  explicit operator bool() const { return inside_; }

 private:
  RundownGuard& rundown_guard_;
  const bool inside_;
};

}  // namespace hvd
