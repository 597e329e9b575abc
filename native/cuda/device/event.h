// An event of a device, reached in the order of its stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "collective/accelerator.h"
#include "cuda/device/device.h"

namespace hvd::cuda {

// Stopwatch: how long operations take on devices, and how much of that is hidden under what
// frontends compute.
//   busy     from the begin of an operation on our stream to its end
//   exposed  from the begin of a frontend stream's wait for an operation to its end; 0 if the
//            stream waits later
// Nothing blocks here: events that a device has not reached are counted later. Any thread.

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

class CudaEvent : public DeviceEvent {
 public:
  // watch: the event has timing, and how long streams wait for it is counted there.
  CudaEvent(std::shared_ptr<Device> device, Device::Event event,
            std::shared_ptr<Stopwatch> watch = nullptr, bool captured = false);
  // The default stream, on which most frontends work, waits once for what several tensors of a
  // fused operation ask for. It is never destroyed; another stream's handle may come again.
  Status stream_wait(void* stream) override;
  Result<bool> query() override;
  bool captured() const override { return captured_; }
  CUevent event() const { return event_.get(); }
  // Of the events of a device's default stream how many were recorded before, this one too; 0: it
  // is another stream's.
  std::uint64_t of_default_stream() const { return of_default_stream_; }
  void set_of_default_stream(std::uint64_t number) { of_default_stream_ = number; }

 protected:
  std::shared_ptr<Device> device_;
  Device::Event event_;
  std::shared_ptr<Stopwatch> watch_;
  const bool captured_;
  std::uint64_t of_default_stream_ = 0;
  std::atomic<bool> default_stream_waits_{false};
};

// Where an operation that is measured begins on the device. A device has no clock that the host can
// read: `anchor` is an event that it comes by at once, so the host knows when that was.
struct Measured {
  Device::Event anchor, queued, begun;  // with timing
  std::int64_t anchor_ns = 0;           // by the host's clock
  std::int64_t enqueued_ns = 0;         // `queued` was not given to the device before
};

// The done event of such an operation.
class MeasuredEvent final : public CudaEvent {
 public:
  MeasuredEvent(std::shared_ptr<Device> device, Device::Event done,
                std::shared_ptr<Stopwatch> watch, Measured measured);
  std::optional<DeviceSpan> span() override;
  bool span_pending() override;

 private:
  std::optional<std::int64_t> since_anchor_ns(const Device::Event& event) const;

  const Measured measured_;
};

// Behind what `stream` has been given so far.
Result<DeviceEventPtr> record_event(const std::shared_ptr<Device>& device, CUstream stream,
                                    bool captured = false);

}  // namespace hvd::cuda
