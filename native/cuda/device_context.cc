#include "cuda/device_context.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread.h"
#include "cuda/device/pinned.h"

namespace hvd::cuda {
namespace {

const char* const kRoom = "cuda/household";
constexpr auto kWait = std::chrono::seconds(1);  // for devices, at the end
constexpr auto kLook = std::chrono::milliseconds(1);

bool same(const Team& one, const Team& other) {
  return one.id == other.id && one.ranks == other.ranks;
}

}  // namespace

Household::Household(const Driver& driver, int rank, int local_rank)
    : driver_(driver), rank_(rank), local_rank_(local_rank) {}

Result<std::shared_ptr<Device>> Household::device(int number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number == kAnyDevice && !devices_.empty()) return devices_.front();
  for (const auto& device : devices_)
    if (device->number() == number) return device;
  return open(number);
}

Result<std::shared_ptr<Device>> Household::open(int number) {
  int count = 0;
  Status status = driver_.check(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (!status) return status;
  const int share = count == 0 ? 0 : local_rank_ % count;
  auto opened = Device::open(driver_, number == kAnyDevice ? share : number, rank_);
  if (opened) devices_.push_back(opened.value());
  return opened;
}

Table* Household::find(const Team& team) {
  for (const auto& table : tables_)
    if (same(table->team, team)) return table.get();
  return nullptr;
}

Table* Household::add(Table table) {
  const std::lock_guard<std::mutex> inside(gate_.mutex());
  const std::lock_guard<std::mutex> lock(mutex_);
  tables_.push_back(std::make_unique<Table>(std::move(table)));
  return tables_.back().get();
}

std::vector<std::shared_ptr<Device>> Household::devices() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return devices_;
}

void Household::keep(const DeviceRegion& region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  regions_.push_back(region);
}

void Household::forget(const DeviceRegion& region) {
  const std::lock_guard<std::mutex> lock(mutex_);
  regions_.erase(std::remove_if(regions_.begin(), regions_.end(),
                                [&](const DeviceRegion& one) { return one.mine == region.mine; }),
                 regions_.end());
}

Status Household::drain(const Abort& abort) {
  for (const auto& device : devices()) {
    if (Status status = wait_for_stream(*device, device->stream(), abort); !status) return status;
  }
  return Status::ok();
}

// What has failed will not go on.
bool Household::idle() {
  for (const auto& device : devices()) {
    const Result<bool> idle = device->idle();
    if (idle && !idle.value()) return false;
  }
  return true;
}

void Household::settle() {
  const std::lock_guard<std::mutex> inside(gate_.mutex());
  for (const auto& table : tables_) {
    if (Status status = table->backend->settle(); !status)
      log(Level::kWarning, kRoom, status.message);
  }
}

bool Household::settled() {
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = !std::exchange(settling_, true) && !abandoned_;
  }
  if (first) settle();
  return idle();
}

void Household::abandon() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!std::exchange(abandoned_, true)) {
    const Status status = start_thread(
        end_, [self = shared_from_this()] { self->see_out(); },
        [](const char* what) { log(Level::kError, kRoom, what); });
    if (!status) {
      log(Level::kError, kRoom, "devices are not let go: " + status.message);
      return;
    }
  }
  over_.wait_for(lock, kWait, [&] { return seen_out_; });
}

void Household::leave() {
  abandon();
  if (!end_.joinable()) return;
  if (seen_out())
    end_.join();
  else
    end_.detach();
}

bool Household::seen_out() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return seen_out_;
}

void Household::let_go() {
  const std::lock_guard<std::mutex> inside(gate_.mutex());
  for (const auto& table : tables_) {
    if (Status status = table->backend->let_go(); !status)
      log(Level::kDebug, kRoom, status.message);
  }
}

// Others may give their memory back when they hear that this rank has gone.
void Household::part() {
  const std::lock_guard<std::mutex> inside(gate_.mutex());
  for (const auto& table : tables_) table->backend->part();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (DeviceRegion& region : regions_) region.mapping.reset();
}

// True: nothing waits any more, and nothing of others is used here. An exception (no memory): the
// next look may have more luck.
bool Household::look_out() {
  try {
    failpoint("cuda.end");
    if (idle()) {
      part();
      return true;
    }
    let_go();
  } catch (...) {  // NOLINT(bugprone-empty-catch): as said above
  }
  return false;
}

void Household::see_out() {
  name_thread("hvd-cuda-end");
  block_signals();
  gate_.close();
  while (!look_out()) std::this_thread::sleep_for(kLook);
  const std::lock_guard<std::mutex> lock(mutex_);
  seen_out_ = true;
  over_.notify_all();
}

}  // namespace hvd::cuda
