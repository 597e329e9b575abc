// Queue from the user's threads to the progress-lock owner: requests in the order of the calls, and
// the wish to leave. Whoever pushes rings the doorbell, or takes the progress lock itself.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/message/request.h"

namespace hvd {

class Queue {
 public:
  void push(Request request) {
    const MutexLock lock(mutex_);
    requests_.push_back(std::move(request));
    waiting_.store(true, std::memory_order_release);
  }

  bool empty() const { return !waiting_.load(std::memory_order_acquire); }

  // The vector that was given is the one that is filled next: no memory per call.
  void take(std::vector<Request>& requests) {
    requests.clear();
    const MutexLock lock(mutex_);
    requests.swap(requests_);
    waiting_.store(false, std::memory_order_relaxed);
  }

 private:
  Mutex mutex_;
  std::vector<Request> requests_ GUARDED_BY(mutex_);
  std::atomic<bool> waiting_{false};
};

}  // namespace hvd
