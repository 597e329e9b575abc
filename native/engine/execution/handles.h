// Terms.
//   task      one request of this rank with its memory, from the call that made it until its handle
//             is waited for
//   handle    the number under which the user waits for a task; counted from 0 by every call, also
//             by calls that fail
//   completion  callback at the end of a task that no thread waits for
// A task is in flight until it is finished, and registered by its handle until its outcome is
// returned. Its name is reserved within its set while it is in flight. If the caller does not wait
// at once, the name stays reserved until poll() has reported the end or the outcome is returned: so
// whether a second task of the name is refused depends on this rank's calls, not on the speed of
// other ranks. A task with a completion has no handle, and its name is free before the completion
// runs.
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

// nullptr: ok. Shared, so that ending many tasks needs no memory.
using Ending = std::shared_ptr<const Status>;

struct Task;
using TaskPtr = std::shared_ptr<Task>;

// Runs exactly once, however the task ends, on the thread that ends it. That thread may own the
// progress lock but holds no mutex. It may enqueue: completions of tasks that end meanwhile on this
// thread run after it has returned, so there is no recursion.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void ended(Task& task) noexcept = 0;

 private:
  friend class CompletionRun;
  TaskPtr next_;  // its completion runs after this one
};

struct Task {
  std::int64_t handle = 0;
  std::int64_t enqueued_ns = 0;
  bool small = false;             // a caller may execute it
  bool keeps_name = false;        // until the caller knows the end
  bool finished = false;          // guarded by the mutex of Handles
  std::atomic<bool> held{false};  // not submitted yet: the waiting thread does that
  Request request;
  std::vector<Operand> operands;           // one per tensor of the request, in elements
  DeviceEventPtr ready;                    // of tensors on a device; nullptr: on the host
  std::unique_ptr<Completion> completion;  // nullptr: a thread waits for it

  // Written before the state becomes kDone, read after it.
  Ending ending;
  std::vector<std::shared_ptr<Buffer>> outputs;
  std::vector<std::int64_t> sizes;
  std::int64_t number = -1;
  DeviceEventPtr event;  // reached when the outputs are ready; nullptr: ready
  Word state{kRunning};

  static constexpr std::uint32_t kRunning = 0;
  static constexpr std::uint32_t kWaitedFor = 1;  // a thread sleeps on `state`
  static constexpr std::uint32_t kDone = 2;
  bool done() const { return state.load(std::memory_order_acquire) == kDone; }
};

// True if this thread is running a completion.
bool runs_completion();

class Handles {
 public:
  Handles();
  std::int64_t next() { return counter_.fetch_add(1); }

  // Refuses a reserved name. After close() the task is accepted and finished at once with the
  // closing status.
  Status add(const TaskPtr& task);
  // Add a task that has succeeded already and whose name is free.
  void add_done(const TaskPtr& task);

  // nullptr for a handle that was never allocated or whose outcome was returned.
  TaskPtr find(std::int64_t handle) const;
  bool forget(std::int64_t handle);  // true for exactly one caller
  void free_name(const Task& task);  // the end was reported to the caller

  // By name; nullptr: this rank has no such task in flight.
  TaskPtr in_flight(int set, std::string_view name) const;
  TaskPtr in_flight(Kind kind) const;  // any task of this kind
  std::vector<TaskPtr> all_in_flight() const;
  bool none_in_flight() const;  // nor any name reserved
  // No task is in flight, and this name is not reserved by a finished one.
  bool may_begin_at_once(int set, std::string_view name) const;

  void finish(const TaskPtr& task, const Ending& ending);
  // Remove a task that was never submitted; its completion does not run. False: it has ended
  // already.
  bool withdraw(const Task& task);
  // Finish all tasks in flight, and all later ones. Only the first call has an effect. Needs no
  // memory.
  void close(const Ending& ending) noexcept;
  Status closed() const;                                      // ok: open
  std::atomic<int>& device_waits() { return device_waits_; }  // DeviceWait

 private:
  struct Key {
    int set;
    std::string_view name;  // owned by the task
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
  std::size_t unfinished_ GUARDED_BY(mutex_) = 0;  // among by_name_
};

// Scope in which a user thread waits until its operation is enqueued on a device; counted.
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

// Wait for at most `longest`; return true if the task is finished.
bool wait_done(Task& task, std::chrono::nanoseconds longest);

}  // namespace hvd
