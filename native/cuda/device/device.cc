#include "cuda/device/device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/mutex.h"
#include "cuda/device/choice.h"
#include "cuda/device/pinned.h"

namespace hvd::cuda {

namespace {

const char* const kRoom = "cuda/device";

Uuid bytes_of(const CUuuid& uuid) {
  Uuid bytes{};
  std::memcpy(bytes.data(), uuid.bytes, bytes.size());
  return bytes;
}

// The value of a call that returns one or fails.
template <typename Value, typename Call>
Value value_or(Value otherwise, const Call& call) {
  Value value{};
  return call(&value) == CUDA_SUCCESS ? value : otherwise;
}

}  // namespace

Status InFlightLimiter::step(Device& device, const Abort& abort) {
  if (++steps_ % kWindow != 0) return Status::ok();
  if (device.captures(device.stream())) return Status::ok();
  const Current current(device);
  if (!current) return current.status();
  const Driver& driver = device.driver();
  CUevent& end = ends_[steps_ / kWindow % kWindows];
  Status status = end == nullptr ? driver.check(driver.cuEventCreate(&end, CU_EVENT_DISABLE_TIMING),
                                                "to make an event")
                                 : wait_for(device, end, abort);
  if (!status) return status;
  return driver.check(driver.cuEventRecord(end, device.stream()), "to record an event");
}

void InFlightLimiter::destroy(const Driver& driver) {
  for (CUevent const end : ends_)
    if (end != nullptr) driver.cuEventDestroy(end);
}

Device::Device(const Driver& driver, int number, int rank) : driver_(driver), number_(number) {
  site_.rank = rank;
  site_.name = "rank " + std::to_string(rank) + ", device " + std::to_string(number);
}

Result<std::shared_ptr<Device>> Device::open(const Driver& driver, int number, int rank) {
  const std::shared_ptr<Device> device(new Device(driver, number, rank));
  Status status = device->identify();
  if (status) status = device->prepare();
  if (!status) return status;
  return device;
}

Status Device::identify() {
  const int count = value_or(0, driver_.cuDeviceGetCount);
  if (number_ < 0 || number_ >= count)
    return Status::make(Code::kInvalidArgument,
                        "rank " + std::to_string(site_.rank) + ": there is no device " +
                            std::to_string(number_) + ", this process sees " +
                            std::to_string(count) + " (CUDA_VISIBLE_DEVICES)",
                        kRoom, site_.rank);
  const Site* const before = current_site();
  set_current_site(&site_);
  const Status status = retain();
  set_current_site(before);
  return status;
}

Status Device::retain() {
  Status status = driver_.check(driver_.cuDeviceGet(&handle_, number_), "cuDeviceGet");
  if (!status) return status;
  std::array<char, 128> name{};
  if (driver_.cuDeviceGetName(name.data(), name.size() - 1, handle_) == CUDA_SUCCESS)
    site_.name += std::string(" (") + name.data() + ")";
  CUuuid uuid{};
  status = driver_.check(driver_.cuDeviceGetUuid(&uuid, handle_), "cuDeviceGetUuid");
  if (!status) return status;
  uuid_ = bytes_of(uuid);
  CUcontext context = nullptr;
  status = driver_.check(driver_.cuDevicePrimaryCtxRetain(&context, handle_),
                         "to retain the primary context");
  if (status) context_ = context;
  return status;
}

Status Device::make_stream(int priority, CUstream& stream) {
  CUstream made = nullptr;
  Status status =
      driver_.check(driver_.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, priority),
                    "to make a stream");
  if (status) stream = made;
  return status;
}

Status Device::prepare() {
  const Current current(*this);
  if (!current) return current.status();
  int least = 0, greatest = 0;
  Status status = driver_.check(driver_.cuCtxGetStreamPriorityRange(&least, &greatest),
                                "cuCtxGetStreamPriorityRange");
  if (status) status = make_stream(greatest, stream_);
  if (status) status = make_stream(least, return_);
  if (!status) return status;
  Result<std::unique_ptr<Kernels>> kernels = Kernels::load(driver_);
  if (!kernels) return kernels.status();
  kernels_ = kernels.take();
  has_pools_ = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 1;
  find_reachable();
  probe_word_operations();
  return Status::ok();
}

int Device::attribute(CUdevice_attribute which) const {
  return value_or(0,
                  [&](int* value) { return driver_.cuDeviceGetAttribute(value, which, handle_); });
}

bool Device::is_mps_client() const { return attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 1; }

void Device::find_reachable() {
  reachable_.push_back(uuid_);
  const int count = value_or(0, driver_.cuDeviceGetCount);
  for (int number = 0; number < count && reachable_.size() < kMostReachable; ++number) {
    CUdevice other = 0;
    CUuuid uuid{};
    if (number == number_ || driver_.cuDeviceGet(&other, number) != CUDA_SUCCESS) continue;
    const int can = value_or(
        0, [&](int* value) { return driver_.cuDeviceCanAccessPeer(value, handle_, other); });
    if (can == 1 && driver_.cuDeviceGetUuid(&uuid, other) == CUDA_SUCCESS)
      reachable_.push_back(bytes_of(uuid));
  }
}

// Write a word and wait for it: no attribute tells whether the driver supports that.
void Device::probe_word_operations() {
  CUdeviceptr word = 0;
  if (driver_.cuMemAlloc(&word, sizeof(std::uint32_t)) != CUDA_SUCCESS) return;
  std::array<CUstreamBatchMemOpParams, 2> params{};
  params[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  params[0].writeValue.address = word;
  params[0].writeValue.value = 1;
  params[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  params[1].waitValue.address = word;
  params[1].waitValue.value = 1;
  params[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  has_word_operations_ =
      driver_.cuStreamBatchMemOp(stream_, params.size(), params.data(), 0) == CUDA_SUCCESS;
  probe_word_ = word;
}

// Errors are ignored: at process exit the driver may be unloaded already.
Device::~Device() {
  if (context_ == nullptr) return;
  {
    const Current current(*this);
    sweep();
    kernels_.reset();
    in_flight_limiter_.destroy(driver_);
    for (const auto& events : free_events_)
      for (CUevent const event : events) driver_.cuEventDestroy(event);
    if (stream_ != nullptr) driver_.cuStreamDestroy(stream_);
    if (return_ != nullptr) driver_.cuStreamDestroy(return_);
    if (clock_ != nullptr) driver_.cuStreamDestroy(clock_);
    if (probe_word_ != 0) driver_.cuMemFree(probe_word_);
  }
  driver_.cuDevicePrimaryCtxRelease(handle_);
}

Current::Current(const Device& device)
    : driver_(device.driver()), before_(current_site()), mode_(CU_STREAM_CAPTURE_MODE_RELAXED) {
  set_current_site(&device.site());
  status_ = driver_.check(driver_.cuCtxPushCurrent(device.context()), "to use the device");
  if (status_) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

Current::~Current() {
  CUcontext context = nullptr;
  if (status_) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    driver_.cuCtxPopCurrent(&context);
  }
  set_current_site(before_);
}

// Events of a device, and stream-ordered memory.

namespace {

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

Status copy_on(const Device& device, void* to, const void* from, std::size_t bytes) {
  if (to == from || bytes == 0) return Status::ok();
  const Current current(device);
  if (!current) return current.status();
  const Driver& driver = device.driver();
  return driver.check(
      driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                           bytes, device.stream()),
      "copying on the device");
}

Status scale_on(const Device& device, const std::vector<Operand>& operands,
                const Reduction& reduction) {
  const Current current(device);
  if (!current) return current.status();
  std::vector<Piece> pieces;
  for (const Operand& operand : operands) {
    if (operand.count > 0) pieces.push_back({operand.in, operand.out, operand.count});
  }
  if (pieces.empty()) return Status::ok();
  return device.kernels().scale(device.stream(), reduction, pieces);
}

}  // namespace hvd::cuda
