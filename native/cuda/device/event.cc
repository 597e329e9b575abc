#include "cuda/device/event.h"

#include <algorithm>
#include <utility>

namespace hvd::cuda {

namespace {

// Limit if the times are never read: then the oldest are dropped, because events are a limited
// resource.
constexpr std::size_t kMostSpans = 512;

}  // namespace

void Stopwatch::operation(std::shared_ptr<Device> device, Device::Event begun, Device::Event done) {
  add({std::move(device), std::move(begun), std::move(done), false});
}

void Stopwatch::wait(std::shared_ptr<Device> device, Device::Event wait_begin, Device::Event done) {
  add({std::move(device), std::move(wait_begin), std::move(done), true});
}

DeviceTimes Stopwatch::times() {
  const MutexLock lock(mutex_);
  count();
  return times_;
}

void Stopwatch::add(Span span) {
  const MutexLock lock(mutex_);
  if (spans_.size() >= kMostSpans) count();
  if (spans_.size() >= kMostSpans) spans_.pop_front();
  spans_.push_back(std::move(span));
}

void Stopwatch::count() {
  spans_.remove_if([&](const Span& span) REQUIRES(mutex_) { return counted(span); });
}

// True: the span is finished, counted or not.
bool Stopwatch::counted(const Span& span) {
  const auto took = span.device->seconds_between(span.from, span.to);
  if (!took) return true;  // the device is lost, which its users report
  if (!took.value()) return false;
  const auto ns = static_cast<std::int64_t>(std::max(*took.value(), 0.0) * 1e9);
  (span.exposed ? times_.exposed_ns : times_.busy_ns) += ns;
  return true;
}

CudaEvent::CudaEvent(std::shared_ptr<Device> device, Device::Event event,
                     std::shared_ptr<Stopwatch> watch, bool captured)
    : device_(std::move(device)),
      event_(std::move(event)),
      watch_(std::move(watch)),
      captured_(captured) {}

Status CudaEvent::stream_wait(void* stream) {
  auto* const waiting_stream = static_cast<CUstream>(stream);
  if (waiting_stream == nullptr && default_stream_waits_.load(std::memory_order_acquire))
    return Status::ok();
  const bool captures = device_->captures(waiting_stream);
  if (watch_ != nullptr && !captures) {
    Result<Device::Event> wait_begin = device_->recorded(waiting_stream, Device::Timing::kOn);
    if (!wait_begin) return wait_begin.status();
    watch_->wait(device_, wait_begin.take(), event_);
  }
  Status status = device_->stream_wait(waiting_stream, event_.get());
  if (status && waiting_stream == nullptr && !captures)
    default_stream_waits_.store(true, std::memory_order_release);
  return status;
}

Result<bool> CudaEvent::query() { return device_->query(event_.get()); }

MeasuredEvent::MeasuredEvent(std::shared_ptr<Device> device, Device::Event done,
                             std::shared_ptr<Stopwatch> watch, Measured measured)
    : CudaEvent(std::move(device), std::move(done), std::move(watch)),
      measured_(std::move(measured)) {}

std::optional<std::int64_t> MeasuredEvent::since_anchor_ns(const Device::Event& event) const {
  const auto seconds = device_->seconds_between(measured_.anchor, event);
  if (!seconds || !seconds.value()) return std::nullopt;
  return static_cast<std::int64_t>(*seconds.value() * 1e9);
}

// The anchor is on another stream.
bool MeasuredEvent::span_pending() {
  const Result<bool> there = device_->query(measured_.anchor.get());
  return there && !there.value();
}

// Streams share queues of the device's: where the anchor came late, all would seem too early. None
// was before it was given.
std::optional<DeviceSpan> MeasuredEvent::span() {
  const auto queued = since_anchor_ns(measured_.queued), begun = since_anchor_ns(measured_.begun),
             done = since_anchor_ns(event_);
  if (!queued || !begun || !done) return std::nullopt;
  const std::int64_t zero = std::max(measured_.anchor_ns, measured_.enqueued_ns - *queued);
  return DeviceSpan{zero + *queued, zero + *begun, zero + *done};
}

Result<DeviceEventPtr> record_event(const std::shared_ptr<Device>& device, CUstream stream,
                                    bool captured) {
  Result<Device::Event> event = device->recorded(stream);
  if (!event) return event.status();
  return DeviceEventPtr(std::make_shared<CudaEvent>(device, event.take(), nullptr, captured));
}

}  // namespace hvd::cuda
