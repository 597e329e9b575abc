#include "cuda/device/stopwatch.h"

#include <algorithm>
#include <utility>

namespace hvd::cuda {
namespace {

// Where nobody asks for the times. Then the oldest are forgotten: events are the driver's.
constexpr std::size_t kMostSpans = 512;

}  // namespace

void Stopwatch::operation(std::shared_ptr<Device> device, Device::Event begun, Device::Event done) {
  add({std::move(device), std::move(begun), std::move(done), false});
}

void Stopwatch::wait(std::shared_ptr<Device> device, Device::Event asked, Device::Event done) {
  add({std::move(device), std::move(asked), std::move(done), true});
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

// True: it is over, counted or not to be counted.
bool Stopwatch::counted(const Span& span) {
  const auto took = span.device->seconds_between(span.from, span.to);
  if (!took) return true;  // the device is lost: who uses it says so
  if (!took.value()) return false;
  const auto ns = static_cast<std::int64_t>(std::max(*took.value(), 0.0) * 1e9);
  (span.exposed ? times_.exposed_ns : times_.busy_ns) += ns;
  return true;
}

}  // namespace hvd::cuda
