#include "engine/progress_lock.h"

namespace hvd {

void ProgressLock::acquire() {
  std::uint32_t state = kFree;
  while (!state_.compare_exchange_weak(state, kHeld, std::memory_order_acq_rel)) {
    if (state == kHeld && !state_.compare_exchange_strong(state, kWanted)) state = kFree;
    if (state != kFree) futex_wait(state_, kWanted, std::chrono::hours(1));
    state = kFree;
  }
  doorbell_.awake();
}

bool ProgressLock::try_acquire() {
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
    acquire();
  } else {
    doorbell_.awake();
  }
}

void ProgressLock::sleep(std::uint32_t seen, std::chrono::nanoseconds longest) {
  doorbell_.announce(kCaller);
  doorbell_.wait(seen, longest, kCaller);
  doorbell_.awake();
}

bool ProgressLock::release_if_quiet(std::uint32_t seen) {
  doorbell_.announce(kBackground);
  if (doorbell_.heard() != seen) {
    doorbell_.awake();
    return false;
  }
  release();
  return true;
}

void ProgressLock::hand_off() {
  doorbell_.announce(kBackground);
  // Ring after the release: otherwise the background thread could wake up, find the lock held, and
  // sleep on it. Ringing is needed because it may be about to fall asleep.
  if (!release()) doorbell_.ring();
}

// True: the background thread slept on the progress lock and was woken.
bool ProgressLock::release() {
  if (state_.exchange(kFree, std::memory_order_acq_rel) != kWanted) return false;
  futex_wake_all(state_);
  return true;
}

}  // namespace hvd
