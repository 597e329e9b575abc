// An event of a device, reached in the order of its stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "collective/accelerator.h"
#include "cuda/device/device.h"
#include "cuda/device/stopwatch.h"

namespace hvd::cuda {

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
