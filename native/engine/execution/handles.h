// Terms.
//   task      one request of this rank with its memory, from the call that made it until its handle
//             is waited for
//   handle    the number under which the user waits for a task; counted from 0 by every call, also
//             by calls that fail
//   completion  what is told when a task has ended that nobody waits for
// A task is in flight until it is finished, and known by its handle until its outcome has been
// given. Its name is taken within its set as long as it is in flight; where the caller does not
// wait at once, until poll() has said that it is finished or its outcome has been given: so whether
// a second task of the name is refused depends on this rank's calls, not on how fast others are. A
// task with a completion is known by no handle, and its name is free before the completion is told.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/futex.h"
#include "base/mutex.h"
#include "base/status.h"
#include "collective/accelerator.h"
#include "collective/backend/plan.h"
#include "engine/execution/buffer.h"
#include "engine/message/request.h"

namespace hvd {

// Null: ok. Shared, so that ending many tasks needs no memory.
using Ending = std::shared_ptr<const Status>;

struct Task;
using TaskPtr = std::shared_ptr<Task>;

// Told exactly once, whichever way the task ends, on the thread that ends it, which may have the
// turn but holds no lock. It may enqueue: what ends meanwhile on this thread is told after it has
// returned, so that nothing recurses.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void ended(Task& task) noexcept = 0;

 private:
  friend class Telling;
  TaskPtr next_;  // to be told after this one
};

struct Task {
  std::int64_t handle = 0;
  std::int64_t enqueued_ns = 0;
  bool small = false;             // a caller may carry it out itself
  bool keeps_name = false;        // until the caller knows that it is finished
  bool finished = false;          // guarded by the mutex of Handles
  std::atomic<bool> held{false};  // nobody has been asked yet: who waits for it does so
  Request request;
  std::vector<Operand> operands;           // one per tensor of the request, in elements
  DeviceEventPtr ready;                    // of tensors on a device; null: on the host
  std::unique_ptr<Completion> completion;  // null: somebody waits for it

  // Written before the state becomes kDone, read after it.
  Ending ending;
  std::vector<std::shared_ptr<Buffer>> outputs;
  std::vector<std::int64_t> sizes;
  std::int64_t number = -1;
  DeviceEventPtr event;  // behind which the outputs are; null: they are there
  Word state{kRunning};

  static constexpr std::uint32_t kRunning = 0;
  static constexpr std::uint32_t kWaitedFor = 1;  // somebody sleeps on `state`
  static constexpr std::uint32_t kDone = 2;
  bool done() const { return state.load(std::memory_order_acquire) == kDone; }
};

// This thread is telling a completion.
bool telling();

class Handles {
 public:
  Handles();
  std::int64_t next() { return counter_.fetch_add(1); }

  // Refuses a name that is taken. After close() the task is taken and finished at once with the
  // closing status.
  Status add(const TaskPtr& task);
  // It has ended well already, and no other has its name.
  void add_done(const TaskPtr& task);

  // Null for a handle that was never given out or whose outcome has been given.
  TaskPtr find(std::int64_t handle) const;
  bool forget(std::int64_t handle);  // true: it was known; of several threads one is told so
  void free_name(const Task& task);  // the caller has been told that it is finished

  // By name; null when this rank has nothing of that name in flight.
  TaskPtr in_flight(int set, std::string_view name) const;
  TaskPtr in_flight(Kind kind) const;  // the first of this kind that is found
  std::vector<TaskPtr> all_in_flight() const;
  bool none_in_flight() const;  // nor any name taken
  // Everything has finished, and nobody who may not have heard so has this name.
  bool may_begin_at_once(int set, std::string_view name) const;

  void finish(const TaskPtr& task, const Ending& ending);
  // It was never asked for: nobody is told of it. False: it has ended meanwhile.
  bool withdraw(const Task& task);
  // Finishes everything in flight, and everything that comes later. The first closing wins. Needs
  // no memory.
  void close(const Ending& ending) noexcept;
  Status closed() const;                                      // ok: open
  std::atomic<int>& device_waits() { return device_waits_; }  // DeviceWait

 private:
  struct Key {
    int set;
    std::string_view name;  // the task's own
    bool operator==(const Key& other) const { return set == other.set && name == other.name; }
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.name) ^ static_cast<std::size_t>(key.set);
    }
  };

  void erase_name(const Task& task) REQUIRES(mutex_);

  std::atomic<std::int64_t> counter_{0};
  std::atomic<int> device_waits_{0};
  mutable Mutex mutex_;
  Ending closed_ GUARDED_BY(mutex_);
  std::unordered_map<std::int64_t, TaskPtr> by_handle_ GUARDED_BY(mutex_);
  std::unordered_map<Key, TaskPtr, Hash> by_name_ GUARDED_BY(mutex_);
  std::size_t unfinished_ GUARDED_BY(mutex_) = 0;  // of those by name
};

// User threads that wait for operations on devices to be given to them; one of them while it lives.
class DeviceWait {
 public:
  DeviceWait(std::atomic<int>& all, const Task& task)
      : all_(task.request.on_device() ? &all : nullptr) {
    if (all_ != nullptr) all_->fetch_add(1, std::memory_order_relaxed);
  }
  ~DeviceWait() {
    if (all_ != nullptr) all_->fetch_sub(1, std::memory_order_relaxed);
  }
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  std::atomic<int>* const all_;
};

// True when the task is finished; sleeps at most `longest`.
bool wait_done(Task& task, std::chrono::nanoseconds longest);

}  // namespace hvd
