// Waiting for what can only be asked for again and again (a driver's event, NCCL's state): the
// first looks come at once, the later ones leave the core to others.
#pragma once

#include <chrono>
#include <thread>

#include "base/futex.h"

namespace hvd::cuda {

class Patience {
 public:
  void pause() {
    constexpr int kAtOnce = 200;
    ++looks_;
    if (looks_ < kAtOnce) {
      spin_pause();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(looks_ < 2 * kAtOnce ? 10 : 100));
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace hvd::cuda
