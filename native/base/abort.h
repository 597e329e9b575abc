// The abort of one engine: raised once (the first cause wins), checked by every wait loop. It
// ensures liveness: no native call blocks forever after a failure.
#pragma once

#include <atomic>

#include "base/mutex.h"
#include "base/status.h"

namespace hvd {

class Abort {
 public:
  bool raised() const { return raised_.load(std::memory_order_acquire); }

  // Keeps the first cause and drops later ones. Returns true for the first.
  bool raise(Status cause) {
    const MutexLock lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(cause);
    raised_.store(true, std::memory_order_release);
    return true;
  }

  Status cause() const {
    const MutexLock lock(mutex_);
    return cause_;
  }

 private:
  std::atomic<bool> raised_{false};
  mutable Mutex mutex_;
  Status cause_ GUARDED_BY(mutex_);
};

}  // namespace hvd
