// The abort of one engine: raised once (the first cause wins), looked at by every wait loop.
// The liveness invariant rests on it: no native call blocks for ever after a failure.
#pragma once

#include <atomic>
#include <mutex>

#include "base/status.h"

namespace hvd {

class Abort {
 public:
  bool raised() const { return raised_.load(std::memory_order_acquire); }

  // The first cause is kept, later ones are dropped. Returns true for the first.
  bool raise(Status cause) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(cause);
    raised_.store(true, std::memory_order_release);
    return true;
  }

  Status cause() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cause_;
  }

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex mutex_;
  Status cause_;
};

}  // namespace hvd
