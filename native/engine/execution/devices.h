// Device operations of this rank: from the events behind which their inputs are to the
// end of the engine.
//
// What a device has been given it may never do: a kernel that hangs, or waits for one that does. A
// thread of its own ("hvd-devices", from the first device tensor on) looks at the oldest of these
// operations now and then, warns, and raises the abort in the end.
//
// An engine that fails lets its devices go on, with whatever data there is. An event that had not
// been reached by then tells the cause for ever: nobody takes that data for a result. Who is told
// may free the memory: it is told once the device has let it go.
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
#include "collective/accelerators.h"
#include "collective/backend/group.h"
#include "engine/controller/news.h"
#include "engine/execution/buffer.h"
#include "engine/execution/handles.h"
#include "engine/message/request.h"

namespace hvd {

// As the device's, until the engine fails before it is reached.
class DoneEvent final : public DeviceEvent {
 public:
  // abandoning: held until the devices are let go.
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
  bool span_comes() override { return event_->span_comes(); }

  bool over();  // as the device says it: reached, or nothing comes any more
  // Once; what is not known to be reached is lost.
  void lose_unless_reached(const Ending& cause) noexcept;

 private:
  HVD_VISIBLE Status cause() const;

  const DeviceEventPtr event_;
  const std::shared_ptr<Mutex> abandoning_;
  Ending cause_;  // written before lost_
  std::atomic<bool> lost_{false};
};

// How long devices may take.
struct DeviceRules {
  int rank = 0;
  std::int64_t warning_ns = 0;   // 0: no warning
  std::int64_t deadline_ns = 0;  // 0: for ever
  std::string setting;           // where the deadline comes from
};

// An operation from the moment in which it is begun on a device.
struct DeviceOperation {
  std::vector<std::string> names;
  Kind kind = Kind::kAllreduce;
  int set = 0;
  int device = kCpu;
  std::int64_t since_ns = 0;
  DeviceEventPtr ready;             // of its newest input; null: this rank stands in
  std::shared_ptr<DoneEvent> done;  // null: it is still being given
};

// An operation as the host has seen it. The trace has it once the device has done it.
struct DeviceCourse {
  struct Tensor {
    std::string name, shape;
    TraceTensor given;  // without those
  };
  TraceCourse course;  // until the device was asked
  const char* algorithm = "";
  std::int64_t begun_ns = 0, given_ns = 0;  // between them it was given to the device
  std::vector<Tensor> tensors;
  DeviceEventPtr done;

  // Where the device's time is not known: as long as it took to give it.
  void write(Trace& trace) const;
};

// The operations that are not known to be done, in the order in which they were begun. It knows no
// other time than the one it is given.
class Outstanding {
 public:
  explicit Outstanding(DeviceRules rules) : rules_(std::move(rules)) {}

  void begin(DeviceOperation operation);
  // The last one has been given to its device. Null: it never comes by anything that could be
  // looked at, being part of a graph.
  void given(std::shared_ptr<DoneEvent> done);
  // Those that are not done at this moment.
  const std::vector<DeviceOperation>& now(std::int64_t now_ns);
  // From the first that is not done: a device does one after the other, and asking it takes time.
  InFlight in_flight(std::int64_t now_ns);

  struct Report {
    std::string warning;  // empty: none
    Status overdue;       // ok: not yet
  };
  Report check(std::int64_t now_ns);
  // How long until the next look, whatever comes meanwhile; negative: never.
  std::int64_t between_looks() const;
  // The engine has ended: events that were not reached say why for ever.
  void lose(const Ending& cause) noexcept;

 private:
  void drop_done(std::int64_t now_ns);
  std::string sentence(std::int64_t now_ns) const;

  const DeviceRules rules_;
  std::vector<DeviceOperation> operations_;
  std::size_t few_ = 0;  // so many were left when those that are done were dropped last
  std::int64_t oldest_since_ns_ = 0;  // for so long the first has been the first
  std::int64_t looked_ns_ = 0;
  std::int64_t warned_ns_ = 0;  // of the first; 0: not yet
};

class Devices {
 public:
  // overdue: called on the thread that looks, also where that cannot go on.
  Devices(Accelerators& accelerators, DeviceRules rules,
          std::function<void(const Status&)> overdue);
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // Any thread. Ok: there is an accelerator (loaded here the first time).
  Status available();
  // Any thread. "" or why tensors on that device are never taken.
  std::string why_not(int device) { return accelerators_.why_not(device); }
  // Any thread. The event behind which the inputs of an operation are.
  Result<DeviceEventPtr> ready(int device, void* stream);

  // Any thread. Where memory of the core's for tensors on `device` is.
  Result<Placement> placement(int device);

  // Progress-lock owner, as Accelerator has them. device: kAnyDevice where this rank stands in for
  // others.
  struct Begun {
    Backend* backend = nullptr;
    Placement placement;
    bool first = false;  // of this set: the devices of its ranks have met
  };
  Result<Begun> begin(DeviceOperation operation, const Group& group, std::int64_t bytes,
                      const std::vector<DeviceEventPtr>& ready);
  Result<DeviceEventPtr> end();
  // False: not kept, nobody writes it.
  bool keep(DeviceCourse& course);
  Result<DeviceRegion> share(int device, const Group& group, std::size_t bytes);
  Status drain();
  void release(const DeviceRegion& region);

  // Progress-lock owner. None while a graph is captured: nothing of that is done before it runs.
  InFlight in_flight(std::int64_t now_ns);

  // Any thread.
  bool idle() const;  // nothing is under way
  bool used() const;  // a tensor on a device has come
  DeviceTimes times() const;
  std::vector<DeviceOperation> outstanding();  // without events
  // From now on courses are kept, until write_courses() is called for the last time.
  void keep_courses();
  // Of what devices have done; last: of what they do in the next seconds too. One caller at a time.
  void write_courses(Trace& trace, bool last);
  // Nothing is begun afterwards. The first call counts.
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
  bool captures_ = false;  // the same: the last operation has become part of a graph
  Mutex courses_mutex_;
  bool keeping_ GUARDED_BY(courses_mutex_) = false;
  // In the order in which they were given.
  std::deque<DeviceCourse> courses_ GUARDED_BY(courses_mutex_);
};

}  // namespace hvd
