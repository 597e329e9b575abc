#include "engine/devices.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace hvd {

// As the device's, until the engine fails before it is reached.
class DoneMark final : public Mark {
 public:
  DoneMark(MarkPtr mark, std::shared_ptr<std::mutex> abandoning)
      : mark_(std::move(mark)), abandoning_(std::move(abandoning)) {}

  Status follow(void* stream) override {
    if (Status lost = cause(); !lost) return lost;
    return mark_->follow(stream);
  }
  Result<bool> reached() override {
    if (Status lost = cause(); !lost) return lost;
    return mark_->reached();
  }

  // Once; what is not known to be reached is lost.
  void lose_unless_reached(const Ending& cause) noexcept {
    try {
      const Result<bool> there = mark_->reached();
      if (there && there.value()) return;
    } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the reason; then it is lost
    }
    cause_ = cause;
    lost_.store(true, std::memory_order_release);
  }

 private:
  Status cause() const {
    if (!lost_.load(std::memory_order_acquire)) return Status::ok();
    const std::lock_guard<std::mutex> until_let_go(*abandoning_);
    return *cause_;
  }

  const MarkPtr mark_;
  const std::shared_ptr<std::mutex> abandoning_;
  Ending cause_;  // written before lost_
  std::atomic<bool> lost_{false};
};

namespace {

constexpr std::size_t kFewMarks = 64;

// A rank that has joined was not asked whether it has a device.
Status stands_in_without(const Status& why) {
  return Status::make(Code::kUnavailable,
                      "a rank that has joined cannot take part in the others' operations on "
                      "devices: " +
                          why.message,
                      "engine/devices");
}

}  // namespace

Devices::Devices(Accelerators& accelerators)
    : accelerators_(accelerators), mutex_(std::make_shared<std::mutex>()) {}

Status Devices::available() { return accelerators_.get().status(); }

Result<MarkPtr> Devices::ready(int device, void* stream) {
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return accelerator.status();
  return accelerator.value()->mark(device, stream);
}

Result<Devices::Begun> Devices::begin(int device, const Team& team, std::int64_t bytes,
                                      const std::vector<MarkPtr>& ready) {
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return stands_in_without(accelerator.status());
  const Result<Backend*> backend =
      accelerator.value()->begin(device, team, static_cast<std::size_t>(bytes), ready);
  if (!backend) return backend.status();
  return Begun{backend.value(), {accelerator.value(), device}};
}

Result<MarkPtr> Devices::end() {
  Result<MarkPtr> done = accelerators_.loaded()->end();
  if (!done) return done.status();
  auto mark = std::make_shared<DoneMark>(done.take(), mutex_);
  remember(mark);
  return MarkPtr(std::move(mark));
}

Result<DeviceRegion> Devices::share(int device, const Team& team, std::size_t bytes) {
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return stands_in_without(accelerator.status());
  return accelerator.value()->share(device, team, bytes);
}

Status Devices::drain() {
  Accelerator* const accelerator = accelerators_.loaded();
  return accelerator == nullptr ? Status::ok() : accelerator->drain();
}

void Devices::release(const DeviceRegion& region) {
  if (Accelerator* const accelerator = accelerators_.loaded()) accelerator->release(region);
}

void Devices::remember(const std::shared_ptr<DoneMark>& mark) {
  const std::lock_guard<std::mutex> lock(*mutex_);
  if (marks_.size() >= std::max(kFewMarks, 2 * swept_)) {
    marks_.erase(std::remove_if(marks_.begin(), marks_.end(),
                                [](const auto& weak) { return weak.expired(); }),
                 marks_.end());
    swept_ = marks_.size();
  }
  marks_.push_back(mark);
}

DeviceTimes Devices::times() const {
  Accelerator* const accelerator = accelerators_.loaded();
  return accelerator == nullptr ? DeviceTimes() : accelerator->times();
}

bool Devices::used() const { return accelerators_.loaded() != nullptr; }

bool Devices::idle() const {
  Accelerator* const accelerator = accelerators_.loaded();
  return accelerator == nullptr || accelerator->idle();
}

void Devices::abandon(const Ending& cause) noexcept {
  Accelerator* const accelerator = accelerators_.loaded();
  if (accelerator == nullptr) return;
  const std::lock_guard<std::mutex> lock(*mutex_);
  if (std::exchange(abandoned_, true)) return;
  for (const auto& weak : marks_) {
    if (const auto mark = weak.lock()) mark->lose_unless_reached(cause);
  }
  try {
    accelerator->abandon();
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory; the engine ends all the same
  }
}

}  // namespace hvd
