// A mark as an event of a device.
#pragma once

#include <memory>

#include "collective/accelerator.h"
#include "cuda/device.h"

namespace hvd::cuda {

class EventMark : public Mark {
 public:
  EventMark(std::shared_ptr<Device> device, Device::Event event);
  Status follow(void* stream) override;
  Result<bool> reached() override;
  CUevent event() const { return event_.get(); }

 private:
  std::shared_ptr<Device> device_;
  Device::Event event_;
};

// Behind what `stream` has been given so far.
Result<MarkPtr> mark_of(const std::shared_ptr<Device>& device, CUstream stream);

}  // namespace hvd::cuda
