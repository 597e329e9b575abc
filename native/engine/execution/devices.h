// Device operations of this rank: from the events that mark their inputs as ready to the end of the
// engine.
//
// Enqueued work may never complete: a kernel hangs, or waits for one that does. A separate thread
// ("hvd-devices", started with the first device tensor) checks the oldest operation periodically,
// warns, and finally raises the abort.
//
// When an engine fails, its devices continue with the data that they have. Events that were not
// reached by then permanently return the cause, so that these data are never used as a result. The
// caller may free the buffers when notified, which happens only after the device has released them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/trace.h"
#include "base/visible.h"
#include "collective/accelerator.h"
#include "collective/backend/backend.h"
#include "engine/controller/news.h"
#include "engine/execution/buffer.h"
#include "engine/execution/handles.h"
#include "engine/message/request.h"

namespace hvd {

// The device's event, replaced by an error if the engine fails before it is reached.
class DoneEvent final : public DeviceEvent {
 public:
  // abandoning: locked until the devices have released the memory.
  DoneEvent(DeviceEventPtr event, std::shared_ptr<Mutex> abandoning)
      : event_(std::move(event)), abandoning_(std::move(abandoning)) {}

  Status stream_wait(void* stream) override {
    if (Status lost = cause(); !lost) return lost;
    return event_->stream_wait(stream);
  }
  Result<bool> query() override {
    if (Status lost = cause(); !lost) return lost;
    return event_->query();
  }
  bool captured() const override { return event_->captured(); }
  std::optional<DeviceSpan> span() override { return event_->span(); }
  bool span_pending() override { return event_->span_pending(); }

  bool over();  // on the device: reached, or never will be
  // Called once: events that are not known to be reached count as lost.
  void lose_unless_reached(const Ending& cause) noexcept;

 private:
  HVD_VISIBLE Status cause() const;

  const DeviceEventPtr event_;
  const std::shared_ptr<Mutex> abandoning_;
  Ending cause_;  // written before lost_
  std::atomic<bool> lost_{false};
};

// Time limits of device operations.
struct DeviceRules {
  int rank = 0;
  std::int64_t warning_ns = 0;   // 0: no warning
  std::int64_t deadline_ns = 0;  // 0: forever
  std::string setting;           // name of the setting of the deadline
};

// An operation that was begun on a device.
struct DeviceOperation {
  std::vector<std::string> names;
  Kind kind = Kind::kAllreduce;
  int set = 0;
  int device = kCpu;
  std::int64_t since_ns = 0;
  DeviceEventPtr ready;             // of its newest input; nullptr: this rank substitutes
  std::shared_ptr<DoneEvent> done;  // nullptr: not completely enqueued yet
};

// An operation as the host saw it, written to the trace when the device has completed it.
struct DeviceCourse {
  struct Tensor {
    std::string name, shape;
    TraceTensor tensor;  // without name and shape
  };
  TraceCourse course;  // until enqueueing began
  const char* algorithm = "";
  std::int64_t begun_ns = 0, enqueued_ns = 0;  // begin and end of enqueueing
  std::vector<Tensor> tensors;
  DeviceEventPtr done;

  // Without the device's times the duration is that of enqueueing.
  void write(Trace& trace) const;
};

// The operations that are not known to be complete, in order. Every function gets the time.
class Outstanding {
 public:
  explicit Outstanding(DeviceRules rules) : rules_(std::move(rules)) {}

  void begin(DeviceOperation operation);
  // The last one is enqueued on its device. nullptr: it is part of a graph and has no event to
  // query.
  void enqueued(std::shared_ptr<DoneEvent> done);
  // The operations that are not done at this time.
  const std::vector<DeviceOperation>& now(std::int64_t now_ns);
  // Counted from the first that is not done: a device executes in order, and a query takes time.
  InFlight in_flight(std::int64_t now_ns);

  struct Report {
    std::string warning;  // empty: none
    Status overdue;       // ok: not yet
  };
  Report check(std::int64_t now_ns);
  // Time between two checks; negative: never.
  std::int64_t check_interval() const;
  // The engine has ended: events that were not reached return the cause forever.
  void lose(const Ending& cause) noexcept;

 private:
  void drop_done(std::int64_t now_ns);
  std::string sentence(std::int64_t now_ns) const;

  const DeviceRules rules_;
  std::vector<DeviceOperation> operations_;
  std::size_t few_ = 0;               // number left after the last removal of completed ones
  std::int64_t oldest_since_ns_ = 0;  // since when the first one is the oldest
  std::int64_t checked_ns_ = 0;
  std::int64_t warned_ns_ = 0;  // of the first; 0: not yet
};

class Devices {
 public:
  // overdue: called on the checking thread, also if that thread fails.
  Devices(Accelerators& accelerators, DeviceRules rules,
          std::function<void(const Status&)> overdue);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // Any thread. Ok: an accelerator is available (loaded by the first call).
  Status available();
  // Any thread. "" or the reason why tensors on that device are never supported.
  std::string why_not(int device) { return accelerators_.why_not(device); }
  // Any thread. The event that marks the inputs of an operation as ready.
  Result<DeviceEventPtr> ready(int device, void* stream);

  // Any thread. The placement of core memory for tensors on `device`.
  Result<Placement> placement(int device);

  // Progress-lock owner; see Accelerator. device: kAnyDevice if this rank substitutes for others.
  struct Begun {
    Backend* backend = nullptr;
    Placement placement;
    bool first = false;  // first operation of this set: the devices of its ranks have met
  };
  Result<Begun> begin(DeviceOperation operation, const Group& group, std::int64_t bytes,
                      const std::vector<DeviceEventPtr>& ready);
  Result<DeviceEventPtr> end();
  // False: not kept, because no timeline is written.
  bool keep(DeviceCourse& course);
  Result<DeviceRegion> share(int device, const Group& group, std::size_t bytes);
  Status drain();
  void release(const DeviceRegion& region);

  // Progress-lock owner. Empty while a graph is captured: nothing executes before it runs.
  InFlight in_flight(std::int64_t now_ns);

  // Any thread.
  bool idle() const;  // nothing is in flight
  bool used() const;  // a tensor on a device was enqueued
  DeviceTimes times() const;
  std::vector<DeviceOperation> outstanding();  // without events
  // Keep courses until the last call of write_courses().
  void keep_courses();
  // Write the courses of completed operations; last: also of those that complete within seconds.
  // One caller at a time.
  void write_courses(Trace& trace, bool last);
  // Begin nothing more. Only the first call has an effect.
  void abandon(const Ending& cause) noexcept;

 private:
  Status start_watching() REQUIRES(*mutex_);
  void watch();
  bool write_done(Trace& trace);
  bool keeping();
  bool abandoned();

  Accelerators& accelerators_;
  const std::function<void(const Status&)> overdue_;
  const std::shared_ptr<Mutex> mutex_;  // shared with the events
  bool abandoned_ GUARDED_BY(*mutex_) = false;
  Outstanding outstanding_ GUARDED_BY(*mutex_);
  bool watching_ = false, leaving_ = false;
  ConditionVariable changed_;
  std::thread watch_;
  std::set<int> met_;      // progress-lock owner only
  bool captures_ = false;  // progress-lock owner only: the last operation was captured into a graph
  Mutex courses_mutex_;
  bool keeping_ GUARDED_BY(courses_mutex_) = false;
  // In the order in which they were enqueued.
  std::deque<DeviceCourse> courses_ GUARDED_BY(courses_mutex_);
};

}  // namespace hvd
