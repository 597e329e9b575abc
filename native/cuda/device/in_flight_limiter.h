// In-flight limiter: how far the host runs ahead of a device.
//   step     something that is given to the stream: a launch, or a batch of words
//   window   so many steps, and an event behind them
// A stream holds about a thousand steps. Whoever gives it more is blocked inside of the driver,
// where nobody looks at the abort; if a peer has died, what would make room never comes. So the
// host waits here before, and looks.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>

#include "base/abort.h"
#include "base/status.h"
#include "cuda/driver/driver.h"

namespace hvd::cuda {

class Device;

class InFlightLimiter {
 public:
  static constexpr std::size_t kWindow = 32;
  static constexpr std::size_t kWindows = 8;  // on their way at most, and the one that is filled

  // Before the next step of the device's stream. Progress-lock owner. Waits for the device where it
  // has too much to do, and ends with the abort's cause. What is captured is not on its way.
  Status step(Device& device, const Abort& abort);
  // At the end of the device's life, whose context is current.
  void destroy(const Driver& driver);

 private:
  std::size_t steps_ = 0;
  std::array<CUevent, kWindows> ends_{};  // of the last windows, in turns
};

}  // namespace hvd::cuda
