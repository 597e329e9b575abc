#include "cuda/mark.h"

#include <utility>

namespace hvd::cuda {

EventMark::EventMark(std::shared_ptr<Device> device, Device::Event event,
                     std::shared_ptr<Stopwatch> watch, bool captured)
    : device_(std::move(device)),
      event_(std::move(event)),
      watch_(std::move(watch)),
      captured_(captured) {}

Status EventMark::follow(void* stream) {
  auto* const follower = static_cast<CUstream>(stream);
  if (watch_ != nullptr && !device_->captures(follower)) {
    Result<Device::Event> asked = device_->recorded(follower, Device::Timing::kOn);
    if (!asked) return asked.status();
    watch_->wait(device_, asked.take(), event_);
  }
  return device_->follow(follower, event_.get());
}

Result<bool> EventMark::reached() { return device_->reached(event_.get()); }

Result<MarkPtr> mark_of(const std::shared_ptr<Device>& device, CUstream stream, bool captured) {
  Result<Device::Event> event = device->recorded(stream);
  if (!event) return event.status();
  return MarkPtr(std::make_shared<EventMark>(device, event.take(), nullptr, captured));
}

}  // namespace hvd::cuda
