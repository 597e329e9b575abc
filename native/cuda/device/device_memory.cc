// Events of a device, and stream-ordered memory.
#include <algorithm>
#include <utility>

#include "base/mutex.h"
#include "cuda/device/device.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/device";

void* pointer_to(CUdeviceptr memory) {
  return reinterpret_cast<void*>(memory);  // NOLINT(performance-no-int-to-ptr): unified addresses
}

}  // namespace

Result<Device::Event> Device::event(Timing timing) {
  CUevent event = nullptr;
  {
    const MutexLock lock(mutex_);
    std::vector<CUevent>& free = free_events_[static_cast<std::size_t>(timing)];
    if (!free.empty()) {
      event = free.back();
      free.pop_back();
    }
  }
  if (event == nullptr) {
    const Current current(*this);
    if (!current) return current.status();
    const unsigned flags = timing == Timing::kOn ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
    Status status = driver_.check(driver_.cuEventCreate(&event, flags), "to make an event");
    if (!status) return status;
  }
  return Event(
      event, [self = shared_from_this(), timing](CUevent last) { self->take_back(last, timing); });
}

void Device::take_back(CUevent event, Timing timing) {
  const MutexLock lock(mutex_);
  free_events_[static_cast<std::size_t>(timing)].push_back(event);
}

Result<Device::Event> Device::recorded(CUstream stream, Timing timing) {
  const Current current(*this);
  if (!current) return current.status();
  Result<Event> made = event(timing);
  if (!made) return made;
  Status status =
      driver_.check(driver_.cuEventRecord(made.value().get(), stream), "to record an event");
  if (!status) return status;
  return made;
}

// Created on first use: most processes never need it.
Result<CUstream> Device::clock() {
  const MutexLock lock(mutex_);
  if (clock_ != nullptr) return clock_;
  const Current current(*this);
  if (!current) return current.status();
  int least = 0, greatest = 0;
  Status status = driver_.check(driver_.cuCtxGetStreamPriorityRange(&least, &greatest),
                                "cuCtxGetStreamPriorityRange");
  if (status) status = make_stream(greatest, clock_);
  if (!status) return status;
  return clock_;
}

Result<Device::Event> Device::instant() {
  const Result<CUstream> stream = clock();
  if (!stream) return stream.status();
  return recorded(stream.value(), Timing::kOn);
}

Result<std::optional<double>> Device::seconds_between(const Event& from, const Event& to) const {
  const Current current(*this);
  float milliseconds = 0;
  const CUresult result = driver_.cuEventElapsedTime(&milliseconds, from.get(), to.get());
  if (result == CUDA_ERROR_NOT_READY) return std::optional<double>();
  if (Status status = driver_.check(result, "cuEventElapsedTime"); !status) return status;
  return std::optional<double>(static_cast<double>(milliseconds) / 1e3);
}

bool Device::captures(CUstream stream) const {
  const Current current(*this);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(stream, &status);
  // The default stream may not be used while a stream that waits for it is captured.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  const bool captured = result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (captured) has_captured_.store(true, std::memory_order_relaxed);
  return captured;
}

Status Device::stream_wait(CUstream stream, CUevent event) {
  const Current current(*this);
  if (!current) return current.status();
  Status status = driver_.check(driver_.cuStreamWaitEvent(stream, event, 0),
                                "to let a stream wait for an event");
  if (status && stream != stream_) remember(stream);
  return status;
}

void Device::remember(CUstream stream) {
  const MutexLock lock(mutex_);
  const auto known = std::find_if(waiting_streams_.begin(), waiting_streams_.end(),
                                  [&](const WaitingStream& one) { return one.stream == stream; });
  if (known == waiting_streams_.end())
    waiting_streams_.push_back({stream, ++stream_waits_});
  else
    known->last = ++stream_waits_;
}

// Drop streams whose last wait was before all live memory was allocated.
void Device::forget_waiting_streams() {
  if (has_captured_.load(std::memory_order_relaxed)) return;
  std::uint64_t oldest = stream_waits_;
  for (const auto* const all : {&living_, &dying_})
    for (const auto& [memory, before] : *all) oldest = std::min(oldest, before);
  waiting_streams_.erase(
      std::remove_if(waiting_streams_.begin(), waiting_streams_.end(),
                     [&](const WaitingStream& one) { return one.last <= oldest; }),
      waiting_streams_.end());
}

// The streams that may still use memory without owners.
std::vector<CUstream> Device::users_of_dying() const {
  std::uint64_t oldest = stream_waits_;
  for (const auto& [memory, before] : dying_) oldest = std::min(oldest, before);
  std::vector<CUstream> users;
  for (const WaitingStream& one : waiting_streams_)
    if (one.last > oldest) users.push_back(one.stream);
  return users;
}

Result<bool> Device::query(CUevent event) {
  const Current current(*this);
  if (!current) return current.status();
  const CUresult result = driver_.cuEventQuery(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_ERROR_CAPTURED_EVENT) return true;
  Status status = driver_.check(result, "an operation given to the device");
  if (!status) return status;
  return true;
}

Result<bool> Device::idle() {
  const Current current(*this);
  if (!current) return current.status();
  if (captures(stream_)) return false;  // which a query would invalidate
  const CUresult result = driver_.cuStreamQuery(stream_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  Status status = driver_.check(result, "an operation given to the device");
  if (!status) return status;
  return !has_captured_.load(std::memory_order_relaxed) || waiting_streams_idle();
}

bool Device::waiting_streams_idle() {
  const MutexLock lock(mutex_);
  return std::none_of(
      waiting_streams_.begin(), waiting_streams_.end(), [&](const WaitingStream& one) {
        return captures(one.stream) || driver_.cuStreamQuery(one.stream) == CUDA_ERROR_NOT_READY;
      });
}

Result<std::shared_ptr<void>> Device::allocate(std::size_t bytes) {
  const Current current(*this);
  if (!current) return current.status();
  if (captures(stream_))
    return Status::make(Code::kUnavailable,
                        site_.name +
                            ": there is no new memory while a CUDA graph is captured; "
                            "give the operation the memory for its result",
                        kRoom, site_.rank);
  sweep();
  CUdeviceptr memory = 0;
  const std::string what = "to allocate " + std::to_string(bytes) + " bytes";
  const std::size_t least = std::max<std::size_t>(bytes, 1);
  Status status = driver_.check(has_pools_ ? driver_.cuMemAllocAsync(&memory, least, stream_)
                                           : driver_.cuMemAlloc(&memory, least),
                                what.c_str());
  if (!status) return status;
  {
    const MutexLock lock(mutex_);
    living_.emplace(memory, stream_waits_);
  }
  return std::shared_ptr<void>(pointer_to(memory), [self = shared_from_this(), memory](void*) {
    self->take_back_memory(memory);
  });
}

void Device::take_back_memory(CUdeviceptr memory) {
  {
    const MutexLock lock(mutex_);
    dying_.insert(living_.extract(memory));
  }
  const Current current(*this);
  if (current) sweep();
}

// Not during a capture: by waiting our stream would become part of the graph.
void Device::sweep() {
  const MutexLock sweeping(sweep_mutex_);
  std::map<CUdeviceptr, std::uint64_t> dead;
  std::vector<CUstream> users;
  {
    const MutexLock lock(mutex_);
    if (dying_.empty()) return;
    users = users_of_dying();
    const auto captured = [&](CUstream stream) { return captures(stream); };
    if (captures(stream_) || std::any_of(users.begin(), users.end(), captured)) return;
    dead.swap(dying_);
    forget_waiting_streams();
  }
  users.push_back(stream_);
  for (CUstream const stream : users) return_after(stream);
  for (const auto& [memory, before] : dead) {
    if (has_pools_)
      driver_.cuMemFreeAsync(memory, return_);
    else
      driver_.cuMemFree(memory);
  }
}

// A destroyed stream needs no wait.
void Device::return_after(CUstream stream) {
  CUevent event = nullptr;
  if (driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
  if (driver_.cuEventRecord(event, stream) == CUDA_SUCCESS)
    driver_.cuStreamWaitEvent(return_, event, 0);
  driver_.cuEventDestroy(event);
}

}  // namespace hvd::cuda
