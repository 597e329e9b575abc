// Progress lock: which thread of this process steps the engine.
//
// Terms.
//   lock         the right to use links, control channel, doorbell, controller and executor
//   background   the thread "hvd-progress"; it has the progress lock whenever there is work that no
//                caller does, and sleeps on the doorbell otherwise
//   caller       a user thread that waits for its own operation: it takes the progress lock by one
//                compare-and-swap while the background thread goes on sleeping, so that a small
//                operation needs no hand-over between threads
//
// Nobody has the progress lock: then the background thread sleeps on the doorbell, announced, or is
// on its way to take(). So whoever makes news and rings is heard: by the holder, who compares what
// it has heard before it goes, or by the background thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/futex.h"
#include "transport/link/doorbell.h"

namespace hvd {

class ProgressLock {
 public:
  explicit ProgressLock(Doorbell& doorbell) : doorbell_(doorbell) {}

  // Background thread: waits until nobody has it.
  void take();
  // Callers.
  bool try_take();

  // The rest: the holder alone. `seen`: what the doorbell had been heard before the last look at
  // everything; all of them return at once when it has been rung since.

  // Background thread: nothing is to be done. Releases the progress lock, sleeps, has it again.
  void park(std::uint32_t seen, std::chrono::nanoseconds longest);
  // Caller: sleeps without giving it away.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds longest);
  // Caller: nothing is to be done; the next ring wakes the background thread. False: it has been
  // rung, look again; the progress lock is still held.
  bool give_back(std::uint32_t seen);
  // Caller: something is to be done, by the background thread.
  void pass_on();

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kWanted = 2;  // held, and the background thread sleeps on state_
  // Who sleeps on the doorbell.
  static constexpr std::uint32_t kBackground = 1;
  static constexpr std::uint32_t kCaller = 2;

  bool release();

  Doorbell& doorbell_;
  Word state_{kFree};
};

}  // namespace hvd
