// Progress engine: passes this rank's requests and the messages of peers to the controller, its
// messages to the peers, and its agenda to the executor. It is run by the owner of the progress
// lock (progress_lock.h): the background thread, or a caller that waits for its own small
// operation.
//
// Leaving is a request like any other and keeps its place in the order: everything that all ranks
// requested before is executed first, operations that no rank can complete any more fail by name,
// and only then the rank may leave. No rank ever waits for a rank that has left.
//
// An exception from below (no memory) stops this engine and the engines of all ranks, never the
// process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/controller/controller.h"
#include "engine/execution/executor.h"
#include "engine/fast_path_negotiation.h"
#include "engine/message/request.h"
#include "engine/options.h"
#include "engine/persistent_request.h"
#include "engine/progress_lock.h"
#include "tensor/slot_store.h"
#include "transport/link/link.h"

namespace hvd {

// Requests of user threads for the progress-lock owner, in the order of the calls. After push() the
// caller rings the doorbell, or acquires the progress lock itself.
class RequestQueue {
 public:
  void push(Request request) {
    const MutexLock lock(mutex_);
    requests_.push_back(std::move(request));
    waiting_.store(true, std::memory_order_release);
  }

  bool empty() const { return !waiting_.load(std::memory_order_acquire); }

  // Swaps the vectors, so that no call allocates memory.
  void take(std::vector<Request>& requests) {
    requests.clear();
    const MutexLock lock(mutex_);
    requests.swap(requests_);
    waiting_.store(false, std::memory_order_relaxed);
  }

 private:
  Mutex mutex_;
  std::vector<Request> requests_ GUARDED_BY(mutex_);
  std::atomic<bool> waiting_{false};
};

// Data of eager rounds (eager/eager_rounds.h): sends this rank's data and polls for those of the
// peers while the round is open. Progress-lock owner only, except for wake().
class EagerExchange {
 public:
  explicit EagerExchange(const Parts& parts) : parts_(parts), links_(parts.mesh.eager()) {}

  bool on() const { return links_ != nullptr; }
  bool may_send(const Task& task) const;
  void send(const Task& task, const EagerTag& tag) const;

  // Pass arrived data to the controller. True: data arrived. An error: data that must arrive never
  // will.
  Result<bool> poll(Controller& controller, std::int64_t now_ns);
  // As of the last poll: this rank has sent its data and waits for peers.
  bool waits() const { return !awaited_.empty(); }
  // Wait until data arrive, or the doorbell was rung since `seen`.
  void wait(std::uint32_t seen, std::chrono::nanoseconds longest) const;
  // Request that the doorbell is rung when data arrive.
  void watch() const;
  // End wait() after the doorbell was rung. Any thread.
  void wake() const;

 private:
  const Parts parts_;
  EagerLinks* const links_;  // nullptr: eager rounds are off
  std::vector<int> awaited_;
};

class ProgressEngine {
 public:
  ProgressEngine(const Parts& parts, const EngineOptions& options);

  void run();  // the background thread's body; returns when this engine has ended

  // Any thread.
  void submit(Request request);
  // Execute operations until the task is done or the deadline expires. Returns earlier if another
  // thread owns the progress lock, or if a larger operation or one on a device comes first: the
  // background thread executes those, and is notified that a caller waits for them. Submits the
  // task's request if it is held.
  void help(const TaskPtr& task, const Deadline& deadline);
  // The same for a caller with other work: never sleeps, and waits for peers for a few microseconds
  // at most. The background thread completes the rest.
  void begin(const TaskPtr& task);
  // Execute a small sum, called at since_ns, if all ranks call it soon. False: nothing was done,
  // and it must be enqueued as a task.
  using Try = FastPathNegotiation::Try;
  bool run(PersistentRequest& request, const std::vector<Operand>& operands, std::int64_t since_ns,
           Try how);
  std::vector<Waiting> waiting() const;
  // A timeline shows when each rank requests, so while it is on everything is negotiated by
  // messages.
  void timeline(bool on, bool mark_cycles);

 private:
  // Progress-lock owner only, from here on. None of them waits for a peer, except work().
  template <typename Body>
  void guarded(const Body& body) noexcept;
  void help(const TaskPtr& task, const Deadline& deadline, Spin spin, Try fast);
  void run_until_idle();
  void run_for(Task& task, const Deadline& deadline, Spin& spin);
  bool release_if_idle();
  bool acquire_progress_lock(Task& task, Spin& spin);
  void negotiate(const TaskPtr& task, Spin& spin, Try fast);
  bool submit_eagerly(const Task& task);
  void enqueue_request(const TaskPtr& task);
  void enqueue_request_unlocked(const TaskPtr& task) noexcept;
  bool may_use_fast_path();
  bool is_quiet() const;
  bool run_with_all(PersistentRequest& request, const std::vector<Operand>& operands,
                    std::int64_t since_ns, Spin& spin, Try how);
  void sleep(std::uint32_t seen, std::chrono::nanoseconds longest);

  void ring();
  void hurry();
  bool poll(std::uint32_t heard);
  bool submit_all();
  bool receive_messages();
  bool receive_eager();
  std::vector<int> departed(std::uint32_t heard) const;
  void handle_departures(const std::vector<int>& left);
  void forget_neighbour(int rank);
  void step_controller();
  InFlight in_flight(std::int64_t now_ns) const;
  void post(const std::vector<OutgoingMessage>& messages);
  void work();
  void carry_out(const Work& work);
  void depart(const Response& response);
  void attend(bool waiting);
  void attend_if_needed();
  std::chrono::nanoseconds longest_sleep() const;

  void end(Status status) noexcept;
  void close(const Ending& ending) noexcept;
  void fail_everywhere(const Status& status);
  void raise_after_exception(const char* what) noexcept;
  void fail_after_exception(const char* what) noexcept;

  const Parts parts_;
  Mesh& mesh_;
  const int rank_;
  const std::int64_t caller_runs_bytes_;
  const std::string affinity_;
  const bool tuning_;
  const bool may_spin_;
  std::atomic<bool> timeline_{false};
  std::atomic<bool> mark_cycles_{false};
  std::atomic<bool> holds_{false};    // an operation on a device is agreed on and held
  std::atomic<bool> hurries_{false};  // a user thread waits for an operation that may be held
  ProgressLock progress_lock_;
  RequestQueue queue_;

  Executor executor_;
  FastPathNegotiation fast_path_;
  SlotStore beside_;  // writes data to the fast path's memory
  EagerExchange eager_;
  std::deque<Work> agenda_;         // agreed on, not executed yet
  std::vector<Request> submitted_;  // swapped with the queue's vector
  bool ended_ = false;
  bool attending_ = false;
  bool stirred_ = false;         // poll the controller although nothing arrived
  std::int64_t due_ns_ = -1;     // when the controller must be polled even if nothing happens
  std::int64_t alarm_ns_ = -1;   // when the background thread wakes up without a ring
  std::vector<int> neighbours_;  // in the tree, until they leave
  std::uint32_t polled_at_ = 0;  // the doorbell's count at the last complete poll
  const Ending no_memory_;       // allocated beforehand

  mutable Mutex controller_mutex_;  // for waiting(); all other calls are the progress-lock owner's
  Controller controller_ GUARDED_BY(controller_mutex_);
};

}  // namespace hvd
