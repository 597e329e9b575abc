#include "engine/progress_lock.h"

namespace hvd {

void ProgressLock::take() {
  std::uint32_t state = kFree;
  while (!state_.compare_exchange_weak(state, kHeld, std::memory_order_acq_rel)) {
    if (state == kHeld && !state_.compare_exchange_strong(state, kWanted)) state = kFree;
    if (state != kFree) futex_wait(state_, kWanted, std::chrono::hours(1));
    state = kFree;
  }
  doorbell_.awake();
}

bool ProgressLock::try_take() {
  std::uint32_t state = kFree;
  if (!state_.compare_exchange_strong(state, kHeld, std::memory_order_acq_rel)) return false;
  doorbell_.awake();
  return true;
}

void ProgressLock::park(std::uint32_t seen, std::chrono::nanoseconds longest) {
  doorbell_.announce(kBackground);
  if (doorbell_.heard() == seen) {
    release();
    doorbell_.wait(seen, longest, kBackground);
    take();
  } else {
    doorbell_.awake();
  }
}

void ProgressLock::sleep(std::uint32_t seen, std::chrono::nanoseconds longest) {
  doorbell_.announce(kCaller);
  doorbell_.wait(seen, longest, kCaller);
  doorbell_.awake();
}

bool ProgressLock::give_back(std::uint32_t seen) {
  doorbell_.announce(kBackground);
  if (doorbell_.heard() != seen) {
    doorbell_.awake();
    return false;
  }
  release();
  return true;
}

void ProgressLock::pass_on() {
  doorbell_.announce(kBackground);
  // Rung after the release, or the background thread could come, find the progress lock held, and
  // sleep on it; rung at all, because it may be just about to fall asleep.
  if (!release()) doorbell_.ring();
}

// True: the background thread slept on the progress lock and is woken.
bool ProgressLock::release() {
  if (state_.exchange(kFree, std::memory_order_acq_rel) != kWanted) return false;
  futex_wake_all(state_);
  return true;
}

}  // namespace hvd
