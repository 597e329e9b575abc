#include "engine/progress_lock.h"

namespace hvd {

void Turn::take() {
  std::uint32_t state = kFree;
  while (!state_.compare_exchange_weak(state, kHeld, std::memory_order_acq_rel)) {
    if (state == kHeld && !state_.compare_exchange_strong(state, kWanted)) state = kFree;
    if (state != kFree) futex_wait(state_, kWanted, std::chrono::hours(1));
    state = kFree;
  }
  bell_.awake();
}

bool Turn::try_take() {
  std::uint32_t state = kFree;
  if (!state_.compare_exchange_strong(state, kHeld, std::memory_order_acq_rel)) return false;
  bell_.awake();
  return true;
}

void Turn::park(std::uint32_t seen, std::chrono::nanoseconds longest) {
  bell_.announce(kBackground);
  if (bell_.heard() == seen) {
    release();
    bell_.wait(seen, longest, kBackground);
    take();
  } else {
    bell_.awake();
  }
}

void Turn::sleep(std::uint32_t seen, std::chrono::nanoseconds longest) {
  bell_.announce(kCaller);
  bell_.wait(seen, longest, kCaller);
  bell_.awake();
}

bool Turn::give_back(std::uint32_t seen) {
  bell_.announce(kBackground);
  if (bell_.heard() != seen) {
    bell_.awake();
    return false;
  }
  release();
  return true;
}

void Turn::pass_on() {
  bell_.announce(kBackground);
  // Rung after the release, or the background thread could come, find the turn held, and sleep on
  // it; rung at all, because it may be just about to fall asleep.
  if (!release()) bell_.ring();
}

// True: the background thread slept on the turn and is woken.
bool Turn::release() {
  if (state_.exchange(kFree, std::memory_order_acq_rel) != kWanted) return false;
  futex_wake_all(state_);
  return true;
}

}  // namespace hvd
