#include "cuda/device/in_flight_limiter.h"

#include "cuda/device/device.h"
#include "cuda/device/pinned.h"

namespace hvd::cuda {

Status InFlightLimiter::step(Device& device, const Abort& abort) {
  if (++steps_ % kWindow != 0) return Status::ok();
  if (device.captures(device.stream())) return Status::ok();
  const Current current(device);
  if (!current) return current.status();
  const Driver& driver = device.driver();
  CUevent& end = ends_[steps_ / kWindow % kWindows];
  Status status = end == nullptr ? driver.check(driver.cuEventCreate(&end, CU_EVENT_DISABLE_TIMING),
                                                "to make an event")
                                 : wait_for(device, end, abort);
  if (!status) return status;
  return driver.check(driver.cuEventRecord(end, device.stream()), "to record an event");
}

void InFlightLimiter::destroy(const Driver& driver) {
  for (CUevent const end : ends_)
    if (end != nullptr) driver.cuEventDestroy(end);
}

}  // namespace hvd::cuda
