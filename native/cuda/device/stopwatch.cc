#include "cuda/device/stopwatch.h"

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

}  // namespace hvd::cuda
