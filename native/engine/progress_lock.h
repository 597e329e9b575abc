// Progress lock: decides which thread of this process runs the engine's steps.
//
// Terms.
//   lock         the right to use links, control channel, doorbell, controller and executor
//   background   the thread "hvd-progress"; it owns the progress lock while there is work that no
//                caller does, and sleeps on the doorbell otherwise
//   caller       a user thread that waits for its own operation: it acquires the progress lock with
//                one compare-and-swap while the background thread keeps sleeping, so that a small
//                operation needs no thread switch
//
// While the lock is free, the background thread sleeps on the doorbell (announced) or is about to
// call acquire(). So no ring is lost: either the owner, which compares the doorbell before it
// releases the lock, or the background thread notices it.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/futex.h"
#include "transport/link/doorbell.h"

namespace hvd {

class ProgressLock {
 public:
  explicit ProgressLock(Doorbell& doorbell) : doorbell_(doorbell) {}

  // Background thread: waits until the lock is free.
  void acquire();
  // Callers.
  bool try_acquire();

  // The rest is for the owner only. seen: the doorbell's count before the last poll; each function
  // returns at once if the doorbell was rung since then.

  // Background thread, idle: releases the progress lock, sleeps, acquires it again.
  void park(std::uint32_t seen, std::chrono::nanoseconds longest);
  // Caller: sleeps without releasing the lock.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds longest);
  // Caller, idle: releases the lock; the next ring wakes the background thread. False: the doorbell
  // was rung, so poll again; the lock is still held.
  bool release_if_quiet(std::uint32_t seen);
  // Caller: releases the lock and wakes the background thread, which has work to do.
  void hand_off();

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kWanted = 2;  // held, and the background thread sleeps on state_
  // Bits for the threads that sleep on the doorbell.
  static constexpr std::uint32_t kBackground = 1;
  static constexpr std::uint32_t kCaller = 2;

  bool release();

  Doorbell& doorbell_;
  Word state_{kFree};
};

}  // namespace hvd
