// One rank's engine: the face that the bindings and the tests use. Any thread may call anything. A
// call checks its own arguments, takes a handle and returns; the progress engine does the rest, on
// a thread of its own or on the one that waits; wait() gives the outcome. In a forked child an
// engine is dead: calls say so, and nothing that it does there harms the parent.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "base/mutex.h"
#include "base/trace.h"
#include "base/visible.h"
#include "engine/controller/deadlock.h"
#include "engine/execution/counters.h"
#include "engine/execution/devices.h"
#include "engine/execution/groups.h"
#include "engine/execution/handles.h"
#include "engine/execution/regions.h"
#include "engine/options.h"
#include "engine/progress_engine.h"
#include "engine/rundown_guard.h"
#include "engine/timeline/timeline.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/mesh/mesh.h"

namespace hvd {

struct Outcome {
  Status status;
  // Results whose size only the ranks together know: allgather (one per tensor), alltoall.
  std::vector<std::shared_ptr<Buffer>> outputs;
  std::vector<std::int64_t> sizes;  // alltoall: the rows that came from every rank of the set
  std::int64_t number = -1;         // join: the last rank; addset: the id; allocate: the region;
                                    // removeset: 1 when there was such a set, else 0
  DeviceEventPtr event;             // of tensors on a device: behind which the outputs are, or why
                                    // they will never be; null: they are there
};

struct Pending {
  std::string name;
  Kind kind;
  double seconds;
  int set;
  std::vector<int> missing;  // known on rank 0
};

// This rank's part of a shared region. `keep` is the mapping: the memory stays as long as somebody
// holds it, also after the engine has ended.
struct SharedPart {
  std::shared_ptr<void> keep;
  std::byte* data = nullptr;  // null: there is no such region
  std::size_t bytes = 0;      // as asked for
};

// What the caller of enqueue() does next.
enum class Next : std::uint8_t {
  kGoesOn,  // with other work: somebody else is woken to carry the operation out
  kWaits,   // help() or wait() for it at once: nobody else need be woken
  kBegins   // begin() for it at once, then other work
};

class HVD_VISIBLE Engine {
 public:
  // Collective: finds the other ranks over the bootstrap.
  static Result<std::unique_ptr<Engine>> start(int rank, int size, Bootstrap& bootstrap,
                                               const EngineOptions& options);
  // Where the system has no thread for it, the engine has ended with kUnavailable.
  Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return topology_; }
  std::string transport_to(int peer) const;

  // An empty name becomes "<op>.noname.<handle>", or "<op>.noname" where there are no tensors. The
  // operands' memory belongs to the engine until the handle is done. stream: of tensors on a
  // device, behind what it has been given so far they are there. An operation on a device is done
  // (for wait()) once it has been given to the device; see Outcome::event.
  Result<std::int64_t> enqueue(Request request, std::vector<Operand> operands,
                               Next next = Next::kGoesOn, void* stream = nullptr);
  // The same for callers that keep the task, and need no look at the table for it.
  Result<TaskPtr> give(Request request, std::vector<Operand> operands, Next next,
                       void* stream = nullptr);
  // A request that is called again and again, for this engine alone; null: it is none that run()
  // could take.
  std::shared_ptr<PersistentRequest> persistent(const Request& request) const;
  // What give() and help() do for it, in one step, if nothing else of this rank is under way and
  // all ranks call it within some microseconds. False: nothing has happened.
  bool run(PersistentRequest& request, const std::vector<Operand>& operands);
  // What give() and begin() do for it: the task, which is done. Null: nothing has happened.
  Result<TaskPtr> begin(PersistentRequest& request, const std::vector<Operand>& operands);
  std::uint64_t serial() const { return serial_; }  // of all engines of this process
  // After Next::kBegins. A small operation that is the only one under way is worked at here, for a
  // few microseconds at most where it waits for other ranks; what has not ended then is carried out
  // by others. So who waits for it soon finds it done, and nobody has been woken.
  void begin(const TaskPtr& task);
  // No other rank is needed for it, and little time: not worth to let other threads of Python work
  // meanwhile.
  bool is_quick(const Task& task) const;
  // The same for what nobody waits for: when it has ended, the completion is told (handles.h),
  // perhaps before this returns: a small operation that is the only one under way is worked at here
  // first, for a tenth of a millisecond at most. Not ok: it is never told.
  Status enqueue(Request request, std::vector<Operand> operands,
                 std::unique_ptr<Completion> completion, void* stream = nullptr);
  // Ok: tensors on a device are taken. Else why not, and enqueue() says so too, without counting
  // that call: the user may copy such tensors to the host and call again, as if it were the first.
  Status has_accelerator();
  // "" or why tensors on that device are never taken, without those words for the user.
  std::string why_not_on(int device);
  // wait() would return at once; reached: and what was given to a device is done there, or will
  // never be. An error: the handle was never given out, or its outcome has been given.
  Result<bool> poll(std::int64_t handle, bool reached = true);
  // Waits, and carries it out where that is quicker. True: it is done; the outcome stays.
  Result<bool> help(std::int64_t handle, std::chrono::nanoseconds longest);
  // Nothing when it is not done after `longest`. The outcome is given once.
  Result<std::unique_ptr<Outcome>> wait(std::int64_t handle, std::chrono::nanoseconds longest);
  // The same for what has no other outcome than its status, and in host memory. An error: as
  // poll(), and find() says it too.
  Result<TaskPtr> find(std::int64_t handle) const;
  bool help(const TaskPtr& task, std::chrono::nanoseconds longest);
  Status end(const TaskPtr& task);  // it is done

  // The ranks of a process set; empty: there is none of this id.
  std::vector<int> ranks_of(int set) const;
  SharedPart part_of(std::int64_t region) const;
  // Rank 0 writes, elsewhere nothing happens. A second start goes on in another file.
  // goes_on: behind what the file has already.
  Status start_timeline(const std::string& path, bool mark_cycles, bool goes_on = false);
  void stop_timeline();  // returns when the file is complete

  void abort(const std::string& message);
  // This rank waits for the user at a prompt, or no longer: others that wait for it meanwhile are
  // not failed for it (stall_shutdown_s).
  void park(bool parked);
  // Report that this rank requests nothing else before the operations that it waits for have ended,
  // or that its cell has ended, or that it works again (deadlock.h). at_ns is a time of now_ns().
  // Ranks that can never go on get Mismatch.
  void blocked(const Blocked& blocked);
  Status ended() const;  // ok while it works
  std::vector<Pending> pending() const;
  const Counters& counters() const;
  std::vector<TraceRecord> trace(std::uint64_t& cursor) const { return trace_.read(cursor); }
  void shutdown();

 private:
  Result<TaskPtr> take(Request request, std::vector<Operand> operands,
                       std::unique_ptr<Completion> completion, Next next, void* stream);
  Status submit(Request request, std::vector<Operand> operands, const TaskPtr& task, Next next,
                void* stream);
  Status ask(const TaskPtr& task);
  bool may_begin(const Request& request, const Task& task);
  bool may_run(const PersistentRequest& request, const std::vector<Operand>& operands) const;
  bool may_pass_by() const;
  void leave_in_time();
  void settle_devices();
  void await_goodbyes();
  void time_devices() const;
  void abandon();
  bool forked() const;

  const unsigned forks_;  // when it was made
  const std::uint64_t serial_;
  const Topology topology_;
  const std::vector<std::string> transports_;
  const std::int64_t caller_runs_bytes_;
  const bool spare_cores_;
  mutable RundownGuard
      rundown_guard_;  // threads that use mesh_ or progress_engine_, which shutdown() takes away
  Handles handles_;
  Backoff brief_help_;
  Groups groups_;
  mutable Counters counters_;  // what devices do is counted when somebody asks
  Trace trace_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Regions> regions_;
  std::unique_ptr<Backends> backends_;
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<ProgressEngine> progress_engine_;
  Mutex timeline_mutex_;
  std::unique_ptr<Timeline> timeline_;
  Word stopped_{0};                      // the thread's body has returned
  Mutex shutdown_mutex_;                 // one shutdown at a time; the second finds nothing to do
  std::unique_ptr<std::thread> thread_;  // last: it uses the rest
};

}  // namespace hvd
