// The life around the agreement: this rank's requests and the messages of others go into the
// controller, its letters to the peers, its agenda to the executor. Done by whoever has the
// progress lock (progress_lock.h): the background thread, or a caller that waits for a small
// operation of its own.
//
// Leaving is a request like any other, so it takes its turn: everything that all ranks had asked
// for before is carried out first, what nobody can complete any more fails by name, and only then
// the rank is let go. Nobody ever waits for a rank that is gone.
//
// Whatever is thrown below (no memory) ends this engine, and with it every rank's, never the
// process.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "base/backoff.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "engine/controller/controller.h"
#include "engine/eager_exchange.h"
#include "engine/execution/executor.h"
#include "engine/fast_path_negotiation.h"
#include "engine/options.h"
#include "engine/persistent_request.h"
#include "engine/progress_lock.h"
#include "engine/queue.h"
#include "tensor/slot_store.h"

namespace hvd {

class ProgressEngine {
 public:
  ProgressEngine(const Parts& parts, const EngineOptions& options);

  void run();  // the background thread's body; returns when this engine has ended

  // Any thread.
  void submit(Request request);
  // Carries operations out until the task is done or the time is over; returns earlier when another
  // thread has the progress lock, or an operation comes first that is larger, or on a device: the
  // background thread does those, and is told that they are waited for. A task that is held is
  // asked for here.
  void help(const TaskPtr& task, const Deadline& deadline);
  // The same for who has other work: it never sleeps, and waits for others for a few microseconds
  // at most. What they are late for is left to the background thread.
  void begin(const TaskPtr& task);
  // A small sum, called at since_ns, if all ranks stand in a call for it soon. False: nothing has
  // happened, and it is to be asked for as a task.
  using Try = FastPathNegotiation::Try;
  bool run(PersistentRequest& request, const std::vector<Operand>& operands, std::int64_t since_ns,
           Try how);
  std::vector<Waiting> waiting() const;
  // While somebody writes a timeline, it shows who asks when: so everything is asked negotiation by
  // messages.
  void timeline(bool on, bool mark_cycles);

 private:
  // Progress-lock owner only, from here on. None of them waits for anybody, work() excepted.
  template <typename Body>
  void guarded(const Body& body) noexcept;
  void help(const TaskPtr& task, const Deadline& deadline, Spin spin, Try fast);
  void run_until_idle();
  void run_for(Task& task, const Deadline& deadline, Spin& spin);
  bool hand_back();
  bool take_progress_lock(Task& task, Spin& spin);
  void ask_for(const TaskPtr& task, Spin& spin, Try fast);
  bool submit_eagerly(const Task& task);
  void ask_by_message(const TaskPtr& task);
  void ask_from_outside(const TaskPtr& task) noexcept;
  bool may_use_fast_path();
  bool nothing_has_come() const;
  bool run_with_all(PersistentRequest& request, const std::vector<Operand>& operands,
                    std::int64_t since_ns, Spin& spin, Try how);
  void sleep(std::uint32_t seen, std::chrono::nanoseconds longest);

  void ring();
  void hurry();
  bool look(std::uint32_t heard);
  bool submit_all();
  bool hear_all();
  bool hear_eager();
  std::vector<int> departed(std::uint32_t heard) const;
  void note_departures(const std::vector<int>& left);
  void forget_neighbour(int rank);
  void take_news();
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
  std::atomic<bool> holds_{false};    // agreed on, on a device, and not carried out yet
  std::atomic<bool> hurries_{false};  // somebody waits since for what may be held
  ProgressLock progress_lock_;
  Queue queue_;

  Executor executor_;
  FastPathNegotiation fast_path_;
  SlotStore beside_;  // of data for its memory
  EagerExchange eager_;
  std::deque<Work> agenda_;     // agreed, not yet done
  std::vector<Request> asked_;  // the queue's other half
  bool ended_ = false;
  bool attending_ = false;
  bool stirred_ = false;         // the controller may have news though nothing has come
  std::int64_t due_ns_ = -1;     // when the controller must be looked at though nothing happens
  std::int64_t alarm_ns_ = -1;   // when the background thread wakes up by itself
  std::vector<int> neighbours_;  // in the tree, as long as they are there
  std::uint32_t looked_at_ = 0;  // the doorbell, when everything was last looked at
  const Ending no_memory_;       // made beforehand

  mutable Mutex controller_mutex_;  // for waiting(); all else comes from the progress-lock owner
  Controller controller_ GUARDED_BY(controller_mutex_);
};

}  // namespace hvd
