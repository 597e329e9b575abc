#include "cuda/device_context.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread.h"
#include "cuda/device/pinned.h"

namespace hvd::cuda {

void SerialisingProxy::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
}

template <typename Call>
Status SerialisingProxy::pass(const Call& call) {
  const MutexLock lock(mutex_);
  if (closed_)
    return Status::make(Code::kShutdown, "the engine has ended", "cuda/serialising_proxy");
  return call(*backend_);
}

Status SerialisingProxy::allreduce(const Group& group, const std::vector<Operand>& operands,
                                   const Reduction& reduction) {
  return pass([&](Backend& to) { return to.allreduce(group, operands, reduction); });
}

Status SerialisingProxy::allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                                          const std::vector<std::ptrdiff_t>& offsets,
                                          const Reduction& reduction) {
  return pass(
      [&](Backend& to) { return to.allreduce_shared(group, operands, offsets, reduction); });
}

Status SerialisingProxy::broadcast(const Group& group, const std::vector<Operand>& operands,
                                   int group_root) {
  return pass([&](Backend& to) { return to.broadcast(group, operands, group_root); });
}

Status SerialisingProxy::allgather(const Group& group, const std::vector<Gather>& tensors) {
  return pass([&](Backend& to) { return to.allgather(group, tensors); });
}

Status SerialisingProxy::alltoall(const Group& group, const Exchange& exchange) {
  return pass([&](Backend& to) { return to.alltoall(group, exchange); });
}

Status SerialisingProxy::reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                                       const Reduction& reduction) {
  return pass([&](Backend& to) { return to.reducescatter(group, tensors, reduction); });
}

namespace {

const char* const kRoom = "cuda/device_context";
constexpr auto kWait = std::chrono::seconds(1);  // for devices, at shutdown
constexpr auto kRetryInterval = std::chrono::milliseconds(1);

}  // namespace

DeviceContext::DeviceContext(const Driver& driver, int rank, int local_rank)
    : driver_(driver), rank_(rank), local_rank_(local_rank) {}

Result<std::shared_ptr<Device>> DeviceContext::device(int number) {
  const MutexLock lock(mutex_);
  if (number == kAnyDevice && !devices_.empty()) return devices_.front();
  for (const auto& device : devices_)
    if (device->number() == number) return device;
  return open(number);
}

Result<std::shared_ptr<Device>> DeviceContext::open(int number) {
  int count = 0;
  Status status = driver_.check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status) return status;
  const int share = count == 0 ? 0 : local_rank_ % count;
  auto opened = Device::open(driver_, number == kAnyDevice ? share : number, rank_);
  if (opened) devices_.push_back(opened.value());
  return opened;
}

DeviceCommunicator* DeviceContext::add(const Group& group, DeviceCommunicator communicator) {
  const MutexLock inside(proxy_.mutex());
  const MutexLock lock(mutex_);
  return &communicators_.add(group, std::make_unique<DeviceCommunicator>(std::move(communicator)));
}

std::vector<std::shared_ptr<Device>> DeviceContext::devices() {
  const MutexLock lock(mutex_);
  return devices_;
}

void DeviceContext::keep(const DeviceRegion& region) {
  const MutexLock lock(mutex_);
  regions_.push_back(region);
}

void DeviceContext::forget(const DeviceRegion& region) {
  const MutexLock lock(mutex_);
  regions_.erase(std::remove_if(regions_.begin(), regions_.end(),
                                [&](const DeviceRegion& one) { return one.mine == region.mine; }),
                 regions_.end());
}

Status DeviceContext::drain(const Abort& abort) {
  for (const auto& device : devices()) {
    if (Status status = wait_for_stream(*device, device->stream(), abort); !status) return status;
  }
  return Status::ok();
}

// Failed devices count as idle.
bool DeviceContext::idle() {
  for (const auto& device : devices()) {
    const Result<bool> idle = device->idle();
    if (idle && !idle.value()) return false;
  }
  return true;
}

void DeviceContext::finalize() {
  const MutexLock inside(proxy_.mutex());
  communicators_.for_each([](const DeviceCommunicator& communicator) {
    if (Status status = communicator.backend->finalize(); !status)
      log(Level::kWarning, kRoom, status.message);
  });
}

bool DeviceContext::finalized() {
  bool first = false;
  {
    const MutexLock lock(mutex_);
    first = !std::exchange(settling_, true) && !abandoned_;
  }
  if (first) finalize();
  return idle();
}

void DeviceContext::abandon() {
  MutexLock lock(mutex_);
  if (!std::exchange(abandoned_, true)) {
    const Status status = start_thread(
        end_, [self = shared_from_this()] { self->drain_all(); },
        [](const char* what) { log(Level::kError, kRoom, what); });
    if (!status) {
      log(Level::kError, kRoom, "the streams of a device cannot be drained: " + status.message);
      return;
    }
  }
  const auto until = std::chrono::steady_clock::now() + kWait;
  while (!drained_ && over_.wait_until(lock, until) != std::cv_status::timeout) {
  }
}

void DeviceContext::leave() {
  abandon();
  if (!end_.joinable()) return;
  if (try_drain())
    end_.join();
  else
    end_.detach();
}

bool DeviceContext::try_drain() {
  const MutexLock lock(mutex_);
  return drained_;
}

void DeviceContext::abort_waits() {
  const MutexLock inside(proxy_.mutex());
  communicators_.for_each([](const DeviceCommunicator& communicator) {
    if (Status status = communicator.backend->abort_waits(); !status)
      log(Level::kDebug, kRoom, status.message);
  });
}

// Peers may free their memory once this rank's goodbye has arrived.
void DeviceContext::part() {
  const MutexLock inside(proxy_.mutex());
  communicators_.for_each(
      [](const DeviceCommunicator& communicator) { communicator.backend->part(); });
  const MutexLock lock(mutex_);
  for (DeviceRegion& region : regions_) region.mapping.reset();
}

// True: no work waits any more, and no peer's memory is used here. After an exception (no memory)
// the next attempt may succeed.
bool DeviceContext::release_waits() {
  try {
    failpoint("cuda.end");
    if (idle()) {
      part();
      return true;
    }
    abort_waits();
  } catch (...) {  // NOLINT(bugprone-empty-catch): see above
  }
  return false;
}

void DeviceContext::drain_all() {
  name_thread("hvd-cuda-end");
  block_signals();
  proxy_.close();
  while (!release_waits()) std::this_thread::sleep_for(kRetryInterval);
  const MutexLock lock(mutex_);
  drained_ = true;
  over_.notify_all();
}

}  // namespace hvd::cuda
