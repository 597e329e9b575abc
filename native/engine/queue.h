// From the user's threads to the coordinator: requests in the order of the calls, and the wish to
// leave. The coordinator is woken only when it sleeps: a burst of calls costs one wake.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace hvd {

class Queue {
 public:
  // True: the coordinator sleeps and must be woken.
  bool push(Request request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(std::move(request));
    return std::exchange(asleep_, false);
  }

  std::vector<Request> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    asleep_ = false;
    return std::exchange(requests_, {});
  }

  // The coordinator announces that it is going to sleep; false: something has come, do not.
  bool may_sleep() {
    const std::lock_guard<std::mutex> lock(mutex_);
    asleep_ = requests_.empty();
    return asleep_;
  }

 private:
  std::mutex mutex_;
  std::vector<Request> requests_;
  bool asleep_ = false;
};

}  // namespace hvd
