#include "engine/execution/devices.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "base/thread.h"

namespace hvd {

namespace {

constexpr std::size_t kFew = 64;
constexpr std::int64_t kPolls = 4;  // within the shortest time limit
// A rank whose own inputs are not ready reports before the ranks that wait for it, so that the
// error names this rank.
constexpr std::int64_t kMostGraceNs = 10'000'000'000;
constexpr std::int64_t kShortestPauseNs = 1'000'000;
// A gap between two checks: this process, or the whole machine, was suspended, too.
constexpr std::int64_t kOwnGapNs = 1'000'000'000;
// Timeline: how many operations a device may be behind, and how long to wait for the last ones.
constexpr std::size_t kMostCourses = 4096;
constexpr double kLastCoursesSeconds = 5;
constexpr std::chrono::microseconds kBetweenCourses(100);

// A rank that has joined may have no device.
Status stands_in_without(const Status& why) {
  return Status::make(Code::kUnavailable,
                      "a rank that has joined cannot take part in the others' operations on "
                      "devices: " +
                          why.message,
                      "engine/devices");
}

std::string seconds_text(std::int64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g s", static_cast<double>(ns) * 1e-9);
  return text.data();
}

bool over(const DeviceOperation& operation) {
  return operation.done != nullptr && operation.done->over();
}

bool lacks_inputs(const DeviceOperation& operation) {
  if (operation.ready == nullptr) return false;
  const Result<bool> there = operation.ready->query();
  return there && !there.value();
}

const char* why_not_done(const DeviceOperation& operation) {
  if (lacks_inputs(operation)) return "what its inputs are computed with there does not end";
  return operation.done == nullptr
             ? "this rank is still giving it to the device"
             : "it hangs there, or waits for the device of a rank where something hangs";
}

}  // namespace

bool DoneEvent::over() {
  const Result<bool> there = event_->query();
  return !there || there.value();
}

void DoneEvent::lose_unless_reached(const Ending& cause) noexcept {
  try {
    const Result<bool> there = event_->query();
    if (there && there.value()) return;
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory, so the reason is lost
  }
  cause_ = cause;
  lost_.store(true, std::memory_order_release);
}

Status DoneEvent::cause() const {
  if (!lost_.load(std::memory_order_acquire)) return Status::ok();
  const MutexLock until_let_go(*abandoning_);
  return *cause_;
}

void DeviceCourse::write(Trace& trace) const {
  TraceCourse whole = course;
  if (const std::optional<DeviceSpan> span = done->span()) {
    whole.step("QUEUE", span->queued_ns);
    whole.step("WAIT_FOR_DATA", span->begun_ns);
    whole.step(algorithm, span->done_ns);
  } else {
    whole.step("QUEUE", begun_ns);
    whole.step(algorithm, enqueued_ns);
  }
  for (const Tensor& tensor : tensors) {
    TraceTensor traced = tensor.tensor;
    traced.name = tensor.name;
    traced.shape = tensor.shape;
    trace.add(whole, traced);
  }
}

void Outstanding::begin(DeviceOperation operation) {
  if (operations_.size() >= std::max(kFew, 2 * few_)) drop_done(operation.since_ns);
  if (operations_.empty()) {
    oldest_since_ns_ = operation.since_ns;
    warned_ns_ = 0;
  }
  operations_.push_back(std::move(operation));
}

void Outstanding::enqueued(std::shared_ptr<DoneEvent> done) {
  if (operations_.empty()) return;  // the engine has ended
  if (done == nullptr)
    operations_.pop_back();
  else
    operations_.back().done = std::move(done);
}

const std::vector<DeviceOperation>& Outstanding::now(std::int64_t now_ns) {
  drop_done(now_ns);
  return operations_;
}

void Outstanding::lose(const Ending& cause) noexcept {
  for (const DeviceOperation& one : operations_) {
    if (one.done != nullptr) one.done->lose_unless_reached(cause);
  }
  operations_.clear();
}

InFlight Outstanding::in_flight(std::int64_t now_ns) {
  const auto first = std::find_if_not(operations_.begin(), operations_.end(), over);
  if (first != operations_.begin()) {
    oldest_since_ns_ = now_ns;
    warned_ns_ = 0;
    operations_.erase(operations_.begin(), first);
  }
  return {operations_.size(), operations_.empty() ? now_ns : operations_.front().since_ns};
}

void Outstanding::drop_done(std::int64_t now_ns) {
  if (!operations_.empty() && over(operations_.front())) {
    oldest_since_ns_ = now_ns;  // or a little earlier; progress resets the clock
    warned_ns_ = 0;
  }
  operations_.erase(std::remove_if(operations_.begin(), operations_.end(), over),
                    operations_.end());
  few_ = operations_.size();
}

std::int64_t Outstanding::check_interval() const {
  const std::int64_t warning = rules_.warning_ns, deadline = rules_.deadline_ns;
  if (warning <= 0 && deadline <= 0) return -1;
  const bool both = warning > 0 && deadline > 0;
  const std::int64_t shortest = both ? std::min(warning, deadline) : std::max(warning, deadline);
  return std::max(shortest / kPolls, kShortestPauseNs);
}

Outstanding::Report Outstanding::check(std::int64_t now_ns) {
  Report report;
  drop_done(now_ns);
  const bool gap = checked_ns_ > 0 && now_ns - checked_ns_ > 2 * check_interval() + kOwnGapNs;
  checked_ns_ = now_ns;
  if (gap) oldest_since_ns_ = now_ns;
  if (operations_.empty()) return report;
  const std::int64_t waited = now_ns - oldest_since_ns_;
  const std::int64_t warning = rules_.warning_ns, deadline = rules_.deadline_ns;
  const bool warns = warning > 0 && waited >= warning && now_ns - warned_ns_ >= warning;
  const bool late = deadline > 0 && waited >= deadline;
  if (!warns && !late) return report;
  const bool own = lacks_inputs(operations_.front());
  const std::int64_t grace = own ? 0 : std::min(deadline / 8, kMostGraceNs);
  if (late && waited >= deadline + grace) {
    report.overdue = Status::make(Code::kStalled, sentence(now_ns) + " (" + rules_.setting + ")",
                                  "engine/devices", own ? rules_.rank : -1);
  } else if (warns) {
    warned_ns_ = now_ns;
    report.warning = sentence(now_ns);
  }
  return report;
}

std::string Outstanding::sentence(std::int64_t now_ns) const {
  const DeviceOperation& first = operations_.front();
  std::string text = std::string(name_of(first.kind)) + " " + first.names.front();
  if (first.names.size() > 1) text += " and " + std::to_string(first.names.size() - 1) + " others";
  const std::string device =
      first.device == kAnyDevice ? "its device" : "device " + std::to_string(first.device);
  return text + " is not done on " + device + " of rank " + std::to_string(rules_.rank) +
         " after " + seconds_text(now_ns - first.since_ns) + ": " + why_not_done(first);
}

Devices::Devices(Accelerators& accelerators, DeviceRules rules,
                 std::function<void(const Status&)> overdue)
    : accelerators_(accelerators),
      overdue_(std::move(overdue)),
      mutex_(std::make_shared<Mutex>()),
      outstanding_(std::move(rules)) {}

Devices::~Devices() {
  {
    const MutexLock lock(*mutex_);
    leaving_ = true;
    changed_.notify_all();
  }
  if (watch_.joinable()) watch_.join();
}

Status Devices::available() { return accelerators_.get().status(); }

Result<DeviceEventPtr> Devices::ready(int device, void* stream) {
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return accelerator.status();
  return accelerator.value()->record(device, stream);
}

Result<Placement> Devices::placement(int device) {
  if (device == kCpu) return Placement();
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return accelerator.status();
  return Placement{accelerator.value(), device};
}

Result<Devices::Begun> Devices::begin(DeviceOperation operation, const Group& group,
                                      std::int64_t bytes,
                                      const std::vector<DeviceEventPtr>& ready) {
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return stands_in_without(accelerator.status());
  const int device = operation.device;
  const bool first = met_.insert(operation.set).second;
  accelerator.value()->measure(keeping());
  {
    const MutexLock lock(*mutex_);
    if (Status status = start_watching(); !status) return status;
    outstanding_.begin(std::move(operation));
  }
  const Result<Backend*> backend =
      accelerator.value()->begin(device, group, static_cast<std::size_t>(bytes), ready);
  if (!backend) return backend.status();
  return Begun{backend.value(), {accelerator.value(), device}, first};
}

Result<DeviceEventPtr> Devices::end() {
  Result<DeviceEventPtr> done = accelerators_.loaded()->end();
  if (!done) return done.status();
  auto event = std::make_shared<DoneEvent>(done.take(), mutex_);
  captures_ = event->captured();
  const MutexLock lock(*mutex_);
  outstanding_.enqueued(captures_ ? nullptr : event);
  return DeviceEventPtr(std::move(event));
}

InFlight Devices::in_flight(std::int64_t now_ns) {
  if (captures_) return {0, now_ns};
  InFlight all;
  {
    const MutexLock lock(*mutex_);
    all = outstanding_.in_flight(now_ns);
  }
  const Accelerator* const accelerator = accelerators_.loaded();
  all.in_turns = accelerator != nullptr && accelerator->in_turns();
  return all;
}

void Devices::keep_courses() {
  const MutexLock lock(courses_mutex_);
  keeping_ = true;
}

bool Devices::keeping() {
  const MutexLock lock(courses_mutex_);
  return keeping_;
}

bool Devices::keep(DeviceCourse& course) {
  const MutexLock lock(courses_mutex_);
  if (!keeping_ || courses_.size() >= kMostCourses) return false;
  courses_.push_back(std::move(course));
  return true;
}

void Devices::write_courses(Trace& trace, bool last) {
  const Deadline deadline = Deadline::after_seconds(last ? kLastCoursesSeconds : 0);
  while (write_done(trace) && last && !deadline.expired() && !abandoned()) {
    std::this_thread::sleep_for(kBetweenCourses);
  }
  if (!last) return;
  const MutexLock lock(courses_mutex_);
  keeping_ = false;
  courses_.clear();
}

// Write the oldest operation if it is done. True: call again. Devices execute in order, and are
// queried without the mutex.
bool Devices::write_done(Trace& trace) {
  MutexLock lock(courses_mutex_);
  while (!courses_.empty()) {
    const DeviceCourse& oldest = courses_.front();  // its address is stable while others are added
    lock.unlock();
    const Result<bool> reached = oldest.done->query();
    if (reached && (!reached.value() || oldest.done->span_pending())) return true;
    oldest.write(trace);
    lock.lock();
    courses_.pop_front();
  }
  return false;
}

bool Devices::abandoned() {
  const MutexLock lock(*mutex_);
  return abandoned_;
}

Status Devices::start_watching() {
  if (watching_ || outstanding_.check_interval() < 0) return Status::ok();
  Status status = start_thread(
      watch_, [this] { watch(); },
      [this](const char* what) {
        overdue_(Status::make(Code::kInternal,
                              std::string("the thread that checks devices has ended: ") + what,
                              "engine/devices"));
      });
  watching_ = status.is_ok();
  return status;
}

void Devices::watch() {
  name_thread("hvd-devices");
  block_signals();
  MutexLock lock(*mutex_);
  const std::chrono::nanoseconds pause(outstanding_.check_interval());
  while (!leaving_ && !abandoned_) {
    changed_.wait_for(lock, pause);
    if (leaving_ || abandoned_) return;
    const Outstanding::Report report = outstanding_.check(now_ns());
    lock.unlock();  // the callback may end the engine
    if (!report.warning.empty()) log(Level::kWarning, "engine/devices", report.warning);
    if (!report.overdue) overdue_(report.overdue);
    lock.lock();
  }
}

std::vector<DeviceOperation> Devices::outstanding() {
  const MutexLock lock(*mutex_);
  std::vector<DeviceOperation> all = outstanding_.now(now_ns());
  for (DeviceOperation& one : all) {
    one.ready = nullptr;
    one.done = nullptr;
  }
  return all;
}

Result<DeviceRegion> Devices::share(int device, const Group& group, std::size_t bytes) {
  const Result<Accelerator*> accelerator = accelerators_.get();
  if (!accelerator) return stands_in_without(accelerator.status());
  return accelerator.value()->share(device, group, bytes);
}

Status Devices::drain() {
  Accelerator* const accelerator = accelerators_.loaded();
  return accelerator == nullptr ? Status::ok() : accelerator->drain();
}

void Devices::release(const DeviceRegion& region) {
  if (Accelerator* const accelerator = accelerators_.loaded()) accelerator->release(region);
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
  const MutexLock lock(*mutex_);
  if (std::exchange(abandoned_, true)) return;
  outstanding_.lose(cause);
  changed_.notify_all();
  try {
    accelerator->abandon();
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory; the engine ends anyway
  }
}

}  // namespace hvd
