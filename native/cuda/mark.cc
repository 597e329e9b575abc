#include "cuda/mark.h"

#include <utility>

namespace hvd::cuda {

EventMark::EventMark(std::shared_ptr<Device> device, Device::Event event)
    : device_(std::move(device)), event_(std::move(event)) {}

Status EventMark::follow(void* stream) {
  return device_->follow(static_cast<CUstream>(stream), event_.get());
}

Result<bool> EventMark::reached() { return device_->reached(event_.get()); }

Result<MarkPtr> mark_of(const std::shared_ptr<Device>& device, CUstream stream) {
  Result<Device::Event> event = device->recorded(stream);
  if (!event) return event.status();
  return MarkPtr(std::make_shared<EventMark>(device, event.take()));
}

}  // namespace hvd::cuda
