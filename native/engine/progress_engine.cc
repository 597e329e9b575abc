#include "engine/progress_engine.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/execution/counters.h"
#include "engine/execution/eager.h"

namespace hvd {

namespace {

constexpr std::chrono::nanoseconds kForEver = std::chrono::hours(1);

std::vector<int> neighbours_of(int rank, int size, int fanout) {
  std::vector<int> neighbours = children_of(rank, size, fanout);
  if (rank != 0) neighbours.push_back(parent_of(rank, fanout));
  return neighbours;
}

// On a single host there is no hierarchy to tune.
ControllerOptions controller_options(ControllerOptions options, const Topology& topology) {
  const auto& hosts = topology.host_of;
  if (std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; })) {
    options.tuner.fixed_hierarchical_allreduce = true;
    options.tuner.fixed_hierarchical_allgather = true;
  }
  return options;
}

// The core of a local rank from "0,2,4" (HOROVOD_THREAD_AFFINITY); -1: none is listed.
// kInvalidArgument: not a list of numbers.
Result<int> core_of(const std::string& list, int local_rank) {
  std::size_t at = 0;
  for (int rank = 0; at < list.size(); ++rank) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string text = list.substr(at, comma - at);
    char* end = nullptr;
    const long core = std::strtol(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0' || core < 0 || core >= CPU_SETSIZE) {
      return Status::make(Code::kInvalidArgument,
                          "\"" + list + "\" is not a list of cores like 0,1,2",
                          "engine/progress_engine");
    }
    if (rank == local_rank) return static_cast<int>(core);
    at = comma + 1;
  }
  return -1;
}

// Pin the calling thread. Failures are logged as warnings.
void pin_thread(const std::string& list, const Topology& topology) {
  if (list.empty()) return;
  const Result<int> core = core_of(list, topology.local_rank);
  if (!core) return log(Level::kWarning, "engine", core.status().message);
  const std::string rank = "local rank " + std::to_string(topology.local_rank);
  if (core.value() < 0) {
    return log(Level::kWarning, "engine",
               "thread affinity \"" + list + "\" names no core for " + rank);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core.value()), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    log(Level::kWarning, "engine",
        "cannot run " + rank + " on core " + std::to_string(core.value()) + ": " +
            std::strerror(errno));  // NOLINT(concurrency-mt-unsafe): glibc's is safe
  }
}

}  // namespace

bool EagerExchange::may_send(const Task& task) const {
  return links_ != nullptr && task.completion == nullptr && may_send_eagerly(parts_, task);
}

void EagerExchange::send(const Task& task, const EagerTag& tag) const {
  send_eagerly(parts_, task, tag);
}

Result<bool> EagerExchange::poll(Controller& controller, std::int64_t now_ns) {
  awaited_.clear();
  bool any = false;
  const EagerRounds& rounds = controller.eager();
  if (links_ == nullptr) return any;
  const std::uint64_t position = rounds.position();
  for (int peer = 0; rounds.open() && peer < parts_.mesh.topology().size; ++peer) {
    if (peer == parts_.mesh.topology().rank || rounds.has_received(peer)) continue;
    const EagerArrival arrival = links_->poll(peer, position);
    if (arrival.kind == EagerArrival::Kind::kEager && arrival.tag.position == position) {
      const std::uint64_t completed = rounds.completed();
      if (Status status = controller.eager_received(peer, arrival.tag.slot, now_ns); !status)
        return status;
      any = any || rounds.has_received(peer) || rounds.completed() != completed;
    } else if (arrival.kind == EagerArrival::Kind::kNothing) {
      awaited_.push_back(peer);
    } else if (arrival.kind == EagerArrival::Kind::kGone && controller.must_arrive(peer)) {
      return Status::make(
          Code::kShutdown,
          "rank " + std::to_string(peer) + " has shut down while this rank still needs it",
          "engine/progress_engine", peer);
    }
  }
  if (!rounds.open()) awaited_.clear();
  return any;
}

void EagerExchange::wait(std::uint32_t seen, std::chrono::nanoseconds longest) const {
  const auto rung = [&] { return parts_.mesh.doorbell().heard() != seen; };
  links_->wait(awaited_, rung, longest);
}

void EagerExchange::watch() const {
  if (waits()) links_->watch(awaited_);
}

void EagerExchange::wake() const {
  if (links_ != nullptr) links_->interrupt_wait();
}

ProgressEngine::ProgressEngine(const Parts& parts, const EngineOptions& options)
    : parts_(parts),
      mesh_(parts.mesh),
      rank_(mesh_.topology().rank),
      caller_runs_bytes_(options.caller_runs_bytes),
      affinity_(options.thread_affinity),
      tuning_(options.controller.tuner.on),
      may_spin_(mesh_.may_spin()),
      progress_lock_(mesh_.doorbell()),
      executor_(parts, options.algorithms),
      fast_path_(mesh_.fast_path(), mesh_.topology().size, options.mesh.first_count),
      eager_(parts),
      neighbours_(neighbours_of(rank_, mesh_.topology().size, options.controller.fanout)),
      no_memory_(std::make_shared<const Status>(
          Status::make(Code::kInternal, "rank " + std::to_string(rank_) + " is out of memory",
                       "engine/progress_engine", rank_))),
      controller_(rank_, mesh_.topology().size,
                  controller_options(options.controller, mesh_.topology())) {}

void ProgressEngine::run() {
  name_thread("hvd-progress");
  block_signals();
  progress_lock_.acquire();
  guarded([&] { pin_thread(affinity_, mesh_.topology()); });
  while (!ended_) guarded([&] { run_until_idle(); });
}  // keeps the progress lock, so no thread runs another step

void ProgressEngine::submit(Request request) {
  may_lack_memory();
  queue_.push(std::move(request));
  ring();
}

void ProgressEngine::timeline(bool on, bool mark_cycles) {
  timeline_.store(on, std::memory_order_relaxed);
  mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
  executor_.timeline(on);
}

std::vector<Waiting> ProgressEngine::waiting() const {
  const MutexLock lock(controller_mutex_);
  return controller_.waiting();
}

void ProgressEngine::help(const TaskPtr& task, const Deadline& deadline) {
  help(task, deadline, Spin::before_sleep(may_spin_), Try::kMeets);
}

void ProgressEngine::begin(const TaskPtr& task) {
  help(task, Deadline(std::chrono::nanoseconds(0)), Spin::in_passing(), Try::kPasses);
}

void ProgressEngine::help(const TaskPtr& task, const Deadline& deadline, Spin spin, Try fast) {
  if (task->done()) return;
  if (task->request.on_device()) return hurry();
  if (!task->small) return;
  if (!acquire_progress_lock(*task, spin)) {
    if (task->held.exchange(false)) enqueue_request_unlocked(task);
    // The owner of the progress lock may have polled the queue for the last time.
    if (!queue_.empty()) ring();
    return;
  }
  guarded([&] {
    if (task->held.exchange(false)) negotiate(task, spin, fast);
    run_for(*task, deadline, spin);
  });
  bool released = false;
  guarded([&] { released = release_if_idle(); });
  if (!released) progress_lock_.hand_off();
}

// If the ring comes too early, the next poll of the held operations finds the waiting thread.
void ProgressEngine::hurry() {
  if (!holds_.load(std::memory_order_relaxed)) return;
  hurries_.store(true, std::memory_order_relaxed);
  ring();
}

// A sleeping caller may wait for the data of an eager round instead of the doorbell.
void ProgressEngine::ring() {
  mesh_.doorbell().ring();
  eager_.wake();
}

bool ProgressEngine::acquire_progress_lock(Task& task, Spin& spin) {
  while (!progress_lock_.try_acquire()) {
    if (task.done() || !spin.again()) return false;
  }
  return true;
}

void ProgressEngine::negotiate(const TaskPtr& task, Spin& spin, Try fast) {
  if (!may_use_fast_path()) {
    fast_path_.decline();
    return enqueue_request(task);
  }
  if (fast == Try::kMeets && submit_eagerly(*task)) return;
  const auto patient = [&] { return is_quiet() && spin.again(); };
  const auto put_data = [&](int half) {
    const Request& request = task->request;
    if (!may_be_put_beside(parts_, request)) return false;
    put_beside(parts_, task->operands, request.tensors.front().dtype, half, beside_);
    return true;
  };
  std::optional<Response> response = fast_path_.agree(task->request, fast, patient, put_data);
  if (!response) {
    spin.restart();  // the response may arrive as fast
    return enqueue_request(task);
  }
  parts_.counters.fast_paths.fetch_add(1, std::memory_order_relaxed);
  parts_.counters.caller_runs.fetch_add(1, std::memory_order_relaxed);
  carry_out({std::move(*response), {task}});
}

bool ProgressEngine::is_quiet() const {
  return !mesh_.abort().raised() && mesh_.doorbell().heard() == polled_at_;
}

bool ProgressEngine::run(PersistentRequest& request, const std::vector<Operand>& operands,
                         std::int64_t since_ns, Try how) {
  Spin spin = how == Try::kMeets ? Spin::before_sleep(may_spin_) : Spin::in_passing();
  while (!progress_lock_.try_acquire()) {
    if (!spin.again()) return false;
  }
  const std::uint32_t polled_at = polled_at_;
  bool done = false, released = false;
  guarded([&] { done = run_with_all(request, operands, since_ns, spin, how); });
  // Every sender rings the doorbell, so no ring means that nothing is pending.
  const bool quiet = done && polled_at == polled_at_ && is_quiet();
  released = quiet && progress_lock_.release_if_quiet(polled_at_);
  if (!released) guarded([&] { released = release_if_idle(); });
  if (!released) progress_lock_.hand_off();
  return done;
}

bool ProgressEngine::run_with_all(PersistentRequest& request, const std::vector<Operand>& operands,
                                  std::int64_t since_ns, Spin& spin, Try how) {
  if (!may_use_fast_path() || !fits(parts_, request)) return false;
  int half = -1;
  if (mesh_.topology().size > 1) {
    const auto patient = [&] { return is_quiet() && spin.again(); };
    const auto put_data = [&](int to) {
      put_beside(parts_, operands, request.reduction.dtype, to, beside_);
    };
    const std::optional<int> agreed = fast_path_.agree(request.text, how, patient, put_data);
    if (!agreed) return false;
    parts_.counters.fast_paths.fetch_add(1, std::memory_order_relaxed);
    half = *agreed;
  }
  const Result<std::int64_t> ended = perform(parts_, request, operands, half, since_ns);
  if (!ended) {
    fail_everywhere(ended.status());
    return false;
  }
  if (how == Try::kMeets) {
    record_wait(parts_.counters, parts_.trace, request.request.name, since_ns, ended.value());
  }
  fast_path_.passed();
  return true;
}

// Send the data before any message: the peers wait for them.
bool ProgressEngine::submit_eagerly(const Task& task) {
  if (!eager_.may_send(task)) return false;
  std::optional<EagerTag> tag;
  {
    const MutexLock lock(controller_mutex_);
    tag = controller_.submit_eagerly(task.request, now_ns());
  }
  if (!tag) return false;
  failpoint("engine.eager");
  eager_.send(task, *tag);
  stirred_ = true;
  return true;
}

void ProgressEngine::enqueue_request(const TaskPtr& task) {
  may_lack_memory();
  queue_.push(task->request);
}

// Without the progress lock. If the request cannot be enqueued, all ranks fail, because peers may
// wait for it.
void ProgressEngine::enqueue_request_unlocked(const TaskPtr& task) noexcept {
  try {
    enqueue_request(task);
  } catch (const std::exception& error) {  // no memory
    raise_after_exception(error.what());
  }
}

// Earlier operations must be executed first.
bool ProgressEngine::may_use_fast_path() {
  if (tuning_ || timeline_.load(std::memory_order_relaxed)) return false;
  const std::uint32_t heard = mesh_.doorbell().heard();
  if (heard != polled_at_) poll(heard);
  return !ended_ && agenda_.empty() && queue_.empty() && parts_.groups.only_the_global();
}

template <typename Body>
void ProgressEngine::guarded(const Body& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {  // no memory
    fail_after_exception(error.what());
  } catch (...) {
    fail_after_exception("unknown exception");
  }
}

// One round of the background thread: everything that is due, then one sleep.
void ProgressEngine::run_until_idle() {
  for (;;) {
    const std::uint32_t seen = mesh_.doorbell().heard();
    const bool news = poll(seen);
    if (ended_) return;
    if (!agenda_.empty()) {
      work();
    } else if (!news) {
      attend_if_needed();
      eager_.watch();
      const auto longest = longest_sleep();
      alarm_ns_ = now_ns() + longest.count();
      progress_lock_.park(seen, longest);
      return;
    }
  }
}

// A caller's rounds until its own task is done.
void ProgressEngine::run_for(Task& task, const Deadline& deadline, Spin& spin) {
  while (!task.done() && !ended_) {
    const std::uint32_t seen = mesh_.doorbell().heard();
    const bool news = poll(seen);
    if (ended_) return;
    if (!agenda_.empty()) {
      const Work& next = agenda_.front();
      if (next.bytes > caller_runs_bytes_ || next.device() != kCpu) return;
      parts_.counters.caller_runs.fetch_add(1, std::memory_order_relaxed);
      work();
      if (!task.done() && deadline.expired()) return;  // executed other operations
      spin.restart();
    } else if (!news && !spin.again()) {
      if (deadline.expired()) return;
      attend_if_needed();
      sleep(seen, std::min(longest_sleep(), deadline.remaining()));
      spin.restart();
    }
  }
}

void ProgressEngine::sleep(std::uint32_t seen, std::chrono::nanoseconds longest) {
  eager_.waits() ? eager_.wait(seen, longest) : progress_lock_.sleep(seen, longest);
}

// True: nothing is due, the progress lock is released, and later events wake the background thread.
// False: the progress lock is still held, and the background thread has work to do.
bool ProgressEngine::release_if_idle() {
  while (!ended_) {
    const std::uint32_t seen = mesh_.doorbell().heard();
    if (poll(seen)) continue;
    attend_if_needed();
    const bool too_late = due_ns_ >= 0 && due_ns_ < alarm_ns_;
    if (!agenda_.empty() || too_late) return false;
    eager_.watch();
    if (progress_lock_.release_if_quiet(seen)) return true;
  }
  return false;
}

// Handle everything that has arrived. heard: the doorbell's count before. True: something arrived.
bool ProgressEngine::poll(std::uint32_t heard) {
  if (mesh_.abort().raised()) {
    end(mesh_.abort().cause());
    return true;
  }
  const std::vector<int> left = departed(heard);  // before the messages, which still count
  const bool submitted = submit_all();
  bool received = receive_messages();
  received = receive_eager() || received;
  const bool hurries = hurries_.load(std::memory_order_relaxed) && hurries_.exchange(false);
  const bool due = hurries || (due_ns_ >= 0 && now_ns() >= due_ns_);
  const bool news = submitted || received || due || std::exchange(stirred_, false);
  if (news && !ended_) step_controller();
  if (left.empty()) polled_at_ = heard;
  if (!left.empty() && agenda_.empty() && !ended_) handle_departures(left);
  if (news) parts_.counters.cycles.fetch_add(1, std::memory_order_relaxed);
  return news || (!left.empty() && agenda_.empty());
}

bool ProgressEngine::submit_all() {
  if (queue_.empty()) return false;
  queue_.take(submitted_);
  may_lack_memory();
  const std::int64_t now = now_ns();
  const MutexLock lock(controller_mutex_);
  for (Request& request : submitted_) controller_.submit(std::move(request), now);
  return true;
}

bool ProgressEngine::receive_messages() {
  bool any = false;
  for (ControlMessage message = mesh_.poll_control(); message.from >= 0;
       message = mesh_.poll_control()) {
    any = true;
    may_lack_memory();
    failpoint("engine.message");
    Status status;
    {
      const MutexLock lock(controller_mutex_);
      status = controller_.receive(message.from, message.bytes, now_ns());
    }
    if (!status) fail_everywhere(status);
    if (ended_) break;
  }
  return any;
}

bool ProgressEngine::receive_eager() {
  if (ended_ || !eager_.on()) return false;
  Result<bool> received = false;
  {
    const MutexLock lock(controller_mutex_);
    received = eager_.poll(controller_, now_ns());
  }
  if (received) return received.value();
  fail_everywhere(received.status());
  return true;
}

// The peers that have sent a goodbye since the last poll. Rare, so checked only after a ring.
std::vector<int> ProgressEngine::departed(std::uint32_t heard) const {
  std::vector<int> left;
  if (heard == polled_at_) return left;
  for (const int peer : neighbours_) {
    if (mesh_.has_left(peer)) left.push_back(peer);
  }
  return left;
}

// A goodbye without a request to leave: that rank could not wait for its turn.
void ProgressEngine::handle_departures(const std::vector<int>& left) {
  for (const int peer : left) {
    forget_neighbour(peer);
    const MutexLock lock(controller_mutex_);
    controller_.peer_left(peer, now_ns());
  }
  step_controller();
}

void ProgressEngine::forget_neighbour(int rank) {
  neighbours_.erase(std::remove(neighbours_.begin(), neighbours_.end(), rank), neighbours_.end());
}

void ProgressEngine::step_controller() {
  News news;
  may_lack_memory();
  {
    const std::int64_t now = now_ns();
    const MutexLock lock(controller_mutex_);
    if (controller_.holds_on_devices()) controller_.in_flight(in_flight(now));
    news = controller_.poll(now);
    const std::int64_t due = controller_.due_in(now);
    due_ns_ = due < 0 ? -1 : now + due;
    holds_.store(controller_.holds_on_devices(), std::memory_order_relaxed);
  }
  parts_.counters.cached.fetch_add(static_cast<std::int64_t>(news.cached),
                                   std::memory_order_relaxed);
  for (const std::string& warning : news.warnings) log(Level::kWarning, "engine", warning);
  for (const Ready& ready : news.ready) {
    parts_.trace.add(ready.at_ns, 0, "READY", ready.name, 0, ready.rank);
  }
  failpoint("engine.before_letters");
  post(news.outgoing);
  failpoint("engine.after_letters");
  if (!news.agenda.empty() && mark_cycles_.load(std::memory_order_relaxed)) {
    parts_.trace.add(now_ns(), 0, "CYCLE", "", 0);
  }
  for (Response& response : news.agenda) agenda_.push_back(executor_.prepare(std::move(response)));
}

// Includes operations that are agreed on and not begun.
InFlight ProgressEngine::in_flight(std::int64_t now_ns) const {
  InFlight all = parts_.devices.in_flight(now_ns);
  all.awaited = parts_.handles.device_waits().load(std::memory_order_relaxed) > 0;
  for (const Work& work : agenda_) {
    if (work.device() != kCpu) ++all.operations;
  }
  return all;
}

void ProgressEngine::post(const std::vector<OutgoingMessage>& messages) {
  for (const OutgoingMessage& outgoing : messages) {
    const Status status = mesh_.send_control(outgoing.to, outgoing.bytes);
    // The peer has sent a goodbye, or there is an abort: the next poll reports the cause.
    if (status || status.code == Code::kShutdown || mesh_.abort().raised()) continue;
    return fail_everywhere(status);
  }
}

void ProgressEngine::work() {
  const Work next = std::move(agenda_.front());
  agenda_.pop_front();
  if (next.response.kind == Kind::kLeave) return depart(next.response);
  carry_out(next);
  if (!tuning_ || ended_) return;
  const MutexLock lock(controller_mutex_);
  controller_.carried_out(next.bytes, now_ns());
  stirred_ = true;
}

void ProgressEngine::carry_out(const Work& work) {
  attend(true);
  if (Status status = executor_.perform(work); !status) return fail_everywhere(status);
  fast_path_.passed(work.response);
}

void ProgressEngine::depart(const Response& response) {
  if (!response.status) return end(response.status);  // this rank leaves or is cut off
  forget_neighbour(response.rank);
}

void ProgressEngine::attend(bool waiting) {
  if (std::exchange(attending_, waiting) != waiting) mesh_.attend(waiting);
}

// Called before a wait or a release of the progress lock: report whether ranks wait for others.
void ProgressEngine::attend_if_needed() {
  const MutexLock lock(controller_mutex_);
  attend(!controller_.idle());
}

std::chrono::nanoseconds ProgressEngine::longest_sleep() const {
  if (due_ns_ < 0) return kForEver;
  return std::clamp(std::chrono::nanoseconds(due_ns_ - now_ns()), std::chrono::nanoseconds(0),
                    kForEver);
}

// End of the progress engine: by failure, by lack of memory, or by a completed request to leave.

void ProgressEngine::end(Status status) noexcept {
  Ending ending;
  try {
    ending = std::make_shared<const Status>(std::move(status));
  } catch (const std::bad_alloc&) {
    ending = no_memory_;  // loses the message
  }
  close(ending);
}

// Devices stop using the operands' memory before the callers learn that it is theirs again.
void ProgressEngine::close(const Ending& ending) noexcept {
  if (mesh_.abort().raised()) parts_.devices.abandon(ending);
  parts_.handles.close(ending);
  ended_ = true;
}

void ProgressEngine::fail_everywhere(const Status& status) {
  mesh_.raise_everywhere(status);
  end(mesh_.abort().cause());
}

void ProgressEngine::raise_after_exception(const char* what) noexcept {
  tried([&] {  // without memory the other ranks are not notified
    if (mesh_.abort().raised()) return;
    mesh_.raise_everywhere(Status::make(Code::kInternal, what, "engine/progress_engine", rank_));
  });
}

void ProgressEngine::fail_after_exception(const char* what) noexcept {
  agenda_.clear();  // frees memory
  raise_after_exception(what);
  try {
    if (mesh_.abort().raised()) end(mesh_.abort().cause());
  } catch (...) {  // NOLINT(bugprone-empty-catch): loses the message
  }
  close(no_memory_);
}

}  // namespace hvd
