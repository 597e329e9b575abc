#include "cuda/device/pinned.h"

#include "base/backoff.h"
#include "base/log.h"

namespace hvd::cuda {
namespace {

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

}  // namespace

Status wait_for(Device& device, CUevent event, const Abort& abort, const Deadline& deadline) {
  for (Polling polling = Polling::of_device();; polling.pause()) {
    const Result<bool> reached = device.query(event);
    if (!reached) return reached.status();
    if (reached.value()) return Status::ok();
    if (abort.raised()) return abort.cause();
    if (deadline.expired())
      return Status::make(Code::kTimeout, device.site().name + " did not come to an event in time",
                          "cuda/pinned", device.site().rank);
  }
}

Status wait_for_stream(Device& device, CUstream stream, const Abort& abort) {
  const auto given = device.recorded(stream);
  return given ? wait_for(device, given.value().get(), abort) : given.status();
}

Pinned::Pinned(std::shared_ptr<Device> device, const Abort& abort)
    : device_(std::move(device)), abort_(abort) {}

Pinned::~Pinned() { release(); }

void Pinned::release() {
  if (memory_ == nullptr) return;
  const Current current(*device_);
  const Driver& driver = device_->driver();
  const Status freed = driver.check(driver.cuMemFreeHost(memory_), "giving back pinned memory");
  if (!freed) log(Level::kWarning, "cuda/pinned", freed.message);
  memory_ = nullptr;
  half_bytes_ = 0;
}

Status Pinned::grow(std::size_t half_bytes) {
  if (half_bytes <= half_bytes_) return Status::ok();
  // Copies from the old memory may be in flight.
  if (Status done = wait_for_stream(*device_, device_->stream(), abort_); !done) return done;
  release();
  const Driver& driver = device_->driver();
  void* memory = nullptr;
  const CUresult result = driver.cuMemHostAlloc(&memory, 2 * half_bytes, 0);
  const std::string what = "allocating " + std::to_string(2 * half_bytes) + " pinned bytes";
  if (Status status = driver.check(result, what.c_str()); !status) return status;
  memory_ = static_cast<std::byte*>(memory);
  half_bytes_ = half_bytes;
  return Status::ok();
}

void Copies::add(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  auto* const to_bytes = static_cast<std::byte*>(to);
  const auto* const from_bytes = static_cast<const std::byte*>(from);
  if (bytes_ > 0 && to_bytes == to_ + bytes_ && from_bytes == from_ + bytes_) {
    bytes_ += bytes;
    return;
  }
  enqueue();
  to_ = to_bytes;
  from_ = from_bytes;
  bytes_ = bytes;
}

void Copies::enqueue() {
  if (bytes_ == 0 || !status_) return;
  const Driver& driver = device_.driver();
  status_ = driver.check(
      driver.cuMemcpyAsync(address(to_), address(from_), bytes_, device_.stream()), "copying");
  bytes_ = 0;
}

Status Copies::finish() {
  enqueue();
  return status_;
}

}  // namespace hvd::cuda
