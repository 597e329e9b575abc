// One rank's engine: the interface for the bindings and the tests. All functions are thread-safe. A
// call validates its arguments, allocates a handle and returns. The progress engine does the rest,
// on a thread of its own or on the waiting thread, and wait() returns the outcome. In a forked
// child the engine is unusable: calls return an error and do not affect the parent.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "base/futex.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "base/visible.h"
#include "engine/controller/stall.h"
#include "engine/execution/counters.h"
#include "engine/execution/devices.h"
#include "engine/execution/groups.h"
#include "engine/execution/handles.h"
#include "engine/execution/message_numbers.h"
#include "engine/execution/regions.h"
#include "engine/options.h"
#include "engine/progress_engine.h"
#include "engine/timeline/timeline.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/mesh/mesh.h"

namespace hvd {

struct Outcome {
  Status status;
  // Results whose size depends on all ranks: allgather (one per tensor), alltoall.
  std::vector<std::shared_ptr<Buffer>> outputs;
  std::vector<std::int64_t> sizes;  // alltoall: rows received from each rank of the set
  std::int64_t number = -1;         // join: the last rank; addset: the id; allocate: the region;
                                    // removeset: 1 if the set existed, else 0; probe: the sender
  DeviceEventPtr event;             // tensors on a device: reached when the outputs are ready, or
                                    // the error if they never will be; nullptr: ready
};

struct Pending {
  std::string name;
  Kind kind;
  double seconds;
  int set;
  std::vector<int> missing;  // known on rank 0 only
};

// This rank's part of a shared region. `keep` owns the mapping: the memory stays valid while it is
// held, even after the engine has ended.
struct SharedPart {
  std::shared_ptr<void> keep;
  std::byte* data = nullptr;  // nullptr: no such region
  std::size_t bytes = 0;      // as requested
};

// What the caller does after enqueue().
enum class Next : std::uint8_t {
  kContinues,  // other work: the background thread is woken to execute the operation
  kWaits,      // help() or wait() immediately: no thread needs to be woken
  kBegins      // begin() immediately, then other work
};

// Rundown protection of an object that shutdown() destroys while other threads may use it: the
// shutting-down thread closes the guard and waits until the last user has left.
class RundownGuard {
 public:
  // Returns false if the guard is closed and the object may be gone.
  bool enter() {
    if ((word_.fetch_add(1) & kClosed) == 0) return true;
    leave();
    return false;
  }
  void leave() {
    if (word_.fetch_sub(1) == (kClosed | 1U)) futex_wake_all(word_);
  }
  void close_and_wait() {
    word_.fetch_or(kClosed);
    for (std::uint32_t now = word_.load(); now != kClosed; now = word_.load()) {
      futex_wait(word_, now, std::chrono::seconds(1));
    }
  }

 private:
  static constexpr std::uint32_t kClosed = 1U << 31U;
  Word word_{0};
};

// Scope in which the guarded object may be used; false if the guard was closed.
class RundownScope {
 public:
  explicit RundownScope(RundownGuard& guard) : rundown_guard_(guard), inside_(guard.enter()) {}
  ~RundownScope() {
    if (inside_) rundown_guard_.leave();
  }
  RundownScope(const RundownScope&) = delete;
  RundownScope& operator=(const RundownScope&) = delete;
  explicit operator bool() const { return inside_; }

 private:
  RundownGuard& rundown_guard_;
  const bool inside_;
};

class HVD_VISIBLE Engine {
 public:
  // Collective: connects to the other ranks over the bootstrap.
  static Result<std::unique_ptr<Engine>> start(int rank, int size, Bootstrap& bootstrap,
                                               const EngineOptions& options);
  // If no thread can be started, the engine has ended with kUnavailable.
  Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return topology_; }
  std::string transport_to(int peer) const;

  // An empty name becomes "<op>.noname.<handle>", or "<op>.noname" without tensors. The engine owns
  // the operands' memory until the handle is done. stream, for tensors on a device: they are ready
  // after the work enqueued on it so far. An operation on a device is done (for wait()) once it is
  // enqueued on the device; see Outcome::event.
  Result<std::int64_t> enqueue(Request request, std::vector<Operand> operands,
                               Next next = Next::kContinues, void* stream = nullptr);
  // Like enqueue(), for callers that keep the task, which saves the lookup of the handle.
  Result<TaskPtr> enqueue_task(Request request, std::vector<Operand> operands, Next next,
                               void* stream = nullptr);
  // A request for repeated calls, valid for this engine only; nullptr if run() cannot handle it.
  std::shared_ptr<PersistentRequest> persistent(const Request& request) const;
  // Does enqueue_task() and help() in one step if no other operation of this rank is in flight and
  // all ranks call it within some microseconds. False: nothing was done.
  bool run(PersistentRequest& request, const std::vector<Operand>& operands);
  // Does enqueue_task() and begin() in one step and returns the finished task. nullptr: nothing was
  // done.
  Result<TaskPtr> begin(PersistentRequest& request, const std::vector<Operand>& operands);
  std::uint64_t serial() const { return serial_; }  // unique among the engines of this process
  // Call it after Next::kBegins. Executes a small operation here if it is the only one in flight,
  // waiting for other ranks for a few microseconds at most; the background thread completes the
  // rest. So a caller that waits soon afterwards finds it done, and no thread was woken.
  void begin(const TaskPtr& task);
  // True if it needs no other rank and little time: not worth releasing the GIL for.
  bool is_quick(const Task& task) const;
  // Enqueue an operation that no thread waits for: the completion runs when it has ended
  // (handles.h), perhaps before this returns, because a small operation that is the only one in
  // flight is executed here first, for a tenth of a millisecond at most. Not ok: the completion
  // never runs.
  Status enqueue(Request request, std::vector<Operand> operands,
                 std::unique_ptr<Completion> completion, void* stream = nullptr);
  // Ok: tensors on a device are supported. Otherwise the reason; enqueue() then returns the same
  // error without counting the call, so that the caller may copy the tensors to the host and call
  // again as if for the first time.
  Status has_accelerator();
  // "" or the reason why tensors on that device are never supported, not worded for users.
  std::string why_not_on(int device);
  // True if wait() would return at once; with `reached` also the work on a device is done there, or
  // never will be. An error: the handle was never allocated, or its outcome was returned already.
  Result<bool> poll(std::int64_t handle, bool reached = true);
  // Wait, and execute the operation here if that is quicker. True: it is done; keeps the outcome.
  Result<bool> help(std::int64_t handle, std::chrono::nanoseconds longest);
  // Return the outcome, once; nullptr if the operation is not done after `longest`.
  Result<std::unique_ptr<Outcome>> wait(std::int64_t handle, std::chrono::nanoseconds longest);
  // The same for operations in host memory whose outcome is only a status. Errors as for poll().
  Result<TaskPtr> find(std::int64_t handle) const;
  bool help(const TaskPtr& task, std::chrono::nanoseconds longest);
  Status end(const TaskPtr& task);  // the task is done

  // The ranks of a process set; empty: no set has this id.
  std::vector<int> ranks_of(int set) const;
  SharedPart part_of(std::int64_t region) const;
  // Only rank 0 writes. A second start switches to another file. append: keep the events that the
  // file already has.
  Status start_timeline(const std::string& path, bool mark_cycles, bool append = false);
  void stop_timeline();  // returns when the file is complete

  void abort(const std::string& message);
  // This rank waits for the user at a prompt, or no longer: ranks that wait for it meanwhile are
  // not failed as stalled (stall_shutdown_s).
  void park(bool parked);
  // Report that this rank requests nothing else before the operations that it waits for have
  // completed, or that its cell has ended, or that it works again (stall.h). at_ns is a time of
  // now_ns(). Ranks that can never proceed get Mismatch.
  void blocked(const Blocked& blocked);
  Status ended() const;  // ok while it runs
  std::vector<Pending> pending() const;
  const Counters& counters() const;
  std::vector<TraceRecord> trace(std::uint64_t& cursor) const { return trace_.read(cursor); }
  void shutdown();

 private:
  Result<TaskPtr> make_task(Request request, std::vector<Operand> operands,
                            std::unique_ptr<Completion> completion, Next next, void* stream);
  Status submit(Request request, std::vector<Operand> operands, const TaskPtr& task, Next next,
                void* stream);
  Status request_operation(const TaskPtr& task);
  std::string next_name(const Request& send, const Group& pair);
  bool may_begin(const Request& request, const Task& task);
  bool may_run(const PersistentRequest& request, const std::vector<Operand>& operands) const;
  bool may_poll_briefly() const;
  void leave_in_time();
  void drain_devices();
  void await_goodbyes();
  void time_devices() const;
  void abandon();
  bool forked() const;

  const unsigned forks_;  // at construction
  const std::uint64_t serial_;
  const Topology topology_;
  const std::vector<std::string> transports_;
  const std::int64_t caller_runs_bytes_;
  const bool spare_cores_;
  mutable RundownGuard rundown_guard_;  // of mesh_ and progress_engine_, which shutdown() destroys
  Handles handles_;
  Backoff brief_help_;
  Groups groups_;
  MessageNumbers message_numbers_;
  mutable Counters counters_;  // device times are added by counters()
  Trace trace_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Regions> regions_;
  std::unique_ptr<Backends> backends_;
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<ProgressEngine> progress_engine_;
  Mutex timeline_mutex_;
  std::unique_ptr<Timeline> timeline_;
  Word stopped_{0};                      // 1: the thread's body has returned
  Mutex shutdown_mutex_;                 // one shutdown at a time; the second finds nothing to do
  std::unique_ptr<std::thread> thread_;  // last: it uses the rest
};

}  // namespace hvd
