// Stopwatch: how long operations take on devices, and how much of that is hidden under what
// frontends compute.
//   busy     from where an operation begins on our stream to where it is done
//   exposed  from where a frontend's stream begins to wait for an operation to where it is done;
//            nothing where that stream comes later
// Nobody waits here: what a device has not come by yet is counted later. Any thread.
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
  void wait(std::shared_ptr<Device> device, Device::Event asked, Device::Event done);
  // Of what has been done so far.
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
