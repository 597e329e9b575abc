// Stopwatch: how long operations take on devices, and how much of that is hidden under what
// frontends compute.
//   busy     from the begin of an operation on our stream to its end
//   exposed  from the begin of a frontend stream's wait for an operation to its end; 0 if the
//            stream waits later
// Nothing blocks here: events that a device has not reached are counted later. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "base/mutex.h"
#include "collective/accelerator.h"
#include "cuda/device/device.h"

namespace hvd::cuda {

class Stopwatch {
 public:
  // Events of the device, with timing.
  void operation(std::shared_ptr<Device> device, Device::Event begun, Device::Event done);
  void wait(std::shared_ptr<Device> device, Device::Event wait_begin, Device::Event done);
  // The times of completed operations.
  DeviceTimes times();

 private:
  struct Span {
    std::shared_ptr<Device> device;
    Device::Event from, to;
    bool exposed;
  };
  void add(Span span);
  void count() REQUIRES(mutex_);
  bool counted(const Span& span) REQUIRES(mutex_);

  Mutex mutex_;
  std::list<Span> spans_ GUARDED_BY(mutex_);  // not counted yet
  DeviceTimes times_ GUARDED_BY(mutex_);
};

}  // namespace hvd::cuda
