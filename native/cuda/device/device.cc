#include "cuda/device/device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

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

}  // namespace hvd::cuda
