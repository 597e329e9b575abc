// A mark as an event of a device.
#pragma once

#include <memory>

#include "collective/accelerator.h"
#include "cuda/device.h"
#include "cuda/stopwatch.h"

namespace hvd::cuda {

class EventMark : public Mark {
 public:
  // watch: the event has timing, and how long streams wait for it is counted there.
  EventMark(std::shared_ptr<Device> device, Device::Event event,
            std::shared_ptr<Stopwatch> watch = nullptr, bool captured = false);
  Status follow(void* stream) override;
  Result<bool> reached() override;
  bool captured() const override { return captured_; }
  CUevent event() const { return event_.get(); }

 private:
  std::shared_ptr<Device> device_;
  Device::Event event_;
  std::shared_ptr<Stopwatch> watch_;
  const bool captured_;
};

// Behind what `stream` has been given so far.
Result<MarkPtr> mark_of(const std::shared_ptr<Device>& device, CUstream stream,
                        bool captured = false);

}  // namespace hvd::cuda
