#include "engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "base/deadline.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/controller/stall.h"
#include "engine/execution/counters.h"
#include "engine/execution/outputs.h"
#include "engine/message/request.h"

namespace hvd {
namespace {

// Limits for inline progress inside enqueue(): bytes and time. Both cost less than waking another
// thread.
constexpr std::int64_t kBriefBytes = 65536;
constexpr std::chrono::microseconds kBriefly(100);

std::atomic<std::uint64_t> serials{0};

std::atomic<unsigned> forks_counted{0};

// The number of forks between this process and the first one that called this. After fork() only
// the calling thread exists in the child: an engine there has no threads, and its memory and
// sockets belong to the parent.
unsigned forks() {
  static const int registered = ::pthread_atfork(
      nullptr, nullptr, [] { forks_counted.fetch_add(1, std::memory_order_relaxed); });
  return registered == 0 ? forks_counted.load(std::memory_order_relaxed) : 0;
}

std::vector<std::string> transports_of(const Mesh& mesh) {
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(mesh.topology().size));
  for (int peer = 0; peer < mesh.topology().size; ++peer) {
    names.push_back(peer == mesh.topology().rank ? "self" : mesh.transport_to(peer));
  }
  return names;
}

Status no_such_handle(std::int64_t handle) {
  return Status::make(Code::kInvalidArgument,
                      "Handle " + std::to_string(handle) + " was not created or has been cleared.",
                      "engine/engine");
}

Status in_a_child() {
  return Status::make(
      Code::kShutdown,
      "this process was forked from one that had initialized Horovod; the child "
      "cannot use its parent's ranks: call init() in the child, or spawn instead of fork",
      "engine/engine");
}

Status no_memory() { return Status::make(Code::kUnavailable, "no memory", "engine"); }

// Unnamed operations are matched across ranks by the number of calls before, or by their kind if
// they have no tensors. A probe is of one rank only. (Sends get other names: message_numbers.h.)
std::string name_for(const Request& request, std::int64_t handle, int rank) {
  std::string name = lower_name_of(request.kind);
  if (request.kind == Kind::kProbe) {
    return name + ".rank" + std::to_string(rank) + ".tag" + std::to_string(request.sizes.front()) +
           "." + std::to_string(handle);
  }
  name += ".noname";
  const bool moves = !request.tensors.empty() && request.kind != Kind::kAllocate;
  return moves ? name + "." + std::to_string(handle) : name;
}

// True if a waiting thread may execute it. Not a join, which may take forever, and nothing on a
// device: a single thread calls the device's driver.
bool is_small(const Request& request, std::int64_t limit) {
  return request.kind != Kind::kJoin && !request.on_device() && request.bytes() <= limit;
}

// Device operations always have a deadline: no late rank can resolve a hang on a device.
DeviceRules device_rules(const EngineOptions& options, int rank) {
  DeviceRules rules;
  rules.rank = rank;
  rules.warning_ns = options.controller.stall_warning_ns;
  rules.deadline_ns = options.gpu_timeout_ns;
  rules.setting = "HVD_GPU_TIMEOUT";
  const std::int64_t shutdown = shutdown_after(options.controller);
  if (shutdown > 0 && (rules.deadline_ns <= 0 || shutdown < rules.deadline_ns)) {
    rules.deadline_ns = shutdown;
    rules.setting = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS";
  }
  return rules;
}

// True if waiting is over; an error means that the event will never be reached.
bool reached_or_lost(DeviceEvent& event) {
  const Result<bool> reached = event.query();
  return !reached || reached.value();
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(int rank, int size, Bootstrap& bootstrap,
                                              const EngineOptions& options) {
  Result<std::unique_ptr<Mesh>> mesh = connect_mesh(rank, size, bootstrap, options.mesh);
  if (!mesh) return mesh.status();
  auto engine = std::make_unique<Engine>(mesh.take(), options);
  if (Status status = engine->ended(); status.code == Code::kUnavailable) return status;
  return engine;
}

Engine::Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options)
    : forks_(forks()),
      serial_(++serials),
      topology_(mesh->topology()),
      transports_(transports_of(*mesh)),
      caller_runs_bytes_(options.caller_runs_bytes),
      spare_cores_(mesh->may_spin()),
      groups_(topology_.rank, topology_.size),
      trace_(options.trace_capacity),
      mesh_(std::move(mesh)),
      regions_(std::make_unique<Regions>(*mesh_)),
      backends_(std::make_unique<Backends>(*mesh_, options.algorithms, options.accelerator,
                                           options.open_accelerator)),
      devices_(std::make_unique<Devices>(
          backends_->accelerators(), device_rules(options, topology_.rank),
          [this](const Status& overdue) { mesh_->raise_everywhere(overdue); })),
      progress_engine_(std::make_unique<ProgressEngine>(
          Parts{*mesh_, handles_, groups_, *regions_, *backends_, *devices_, counters_, trace_},
          options)) {
  if (!options.timeline.empty()) {
    const Status status = start_timeline(options.timeline, options.mark_cycles);
    if (!status) log(Level::kWarning, "engine", status.message);
  }
  thread_ = std::make_unique<std::thread>();
  const Status status = start_thread(
      *thread_,
      [this] {
        progress_engine_->run();
        stopped_.store(1, std::memory_order_release);
        futex_wake_all(stopped_);
      },
      [](const char* what) {
        log(Level::kError, "engine", what);
      });  // run() catches its own exceptions
  if (status) return;
  mesh_->raise_everywhere(status);
  handles_.close(std::make_shared<const Status>(status));
  stopped_.store(1, std::memory_order_release);
}

Engine::~Engine() { shutdown(); }

bool Engine::forked() const { return forks() != forks_; }

std::string Engine::transport_to(int peer) const {
  const bool known = peer >= 0 && peer < topology_.size;
  return known ? transports_[static_cast<std::size_t>(peer)] : "";
}

Result<std::int64_t> Engine::enqueue(Request request, std::vector<Operand> operands, Next next,
                                     void* stream) {
  const Result<TaskPtr> task = enqueue_task(std::move(request), std::move(operands), next, stream);
  if (!task) return task.status();
  return task.value()->handle;
}

Status Engine::enqueue(Request request, std::vector<Operand> operands,
                       std::unique_ptr<Completion> completion, void* stream) {
  const Result<TaskPtr> task = make_task(std::move(request), std::move(operands),
                                         std::move(completion), Next::kBegins, stream);
  if (task) begin(task.value());
  return task.status();
}

Result<TaskPtr> Engine::enqueue_task(Request request, std::vector<Operand> operands, Next next,
                                     void* stream) {
  return make_task(std::move(request), std::move(operands), nullptr, next, stream);
}

std::shared_ptr<PersistentRequest> Engine::persistent(const Request& request) const {
  const RundownScope scope(rundown_guard_);
  const bool may_meet =
      scope && !forked() && (topology_.size == 1 || mesh_->fast_path_data().base != nullptr);
  return may_meet ? make_persistent(request, groups_.find(0)) : nullptr;
}

// All operands are in private memory, and no operation of this rank is in flight.
bool Engine::may_run(const PersistentRequest& request, const std::vector<Operand>& operands) const {
  if (forked() || !handles_.may_begin_at_once(0, request.request.name)) return false;
  const std::size_t width = size_of(request.reduction.dtype);
  return std::all_of(operands.begin(), operands.end(), [&](const Operand& operand) {
    const auto bytes = static_cast<std::int64_t>(operand.count * width);
    if (operand.in == nullptr) return bytes == 0;
    return operand.in != operand.out || regions_->place_of(operand.in, bytes) == kPrivate;
  });
}

bool Engine::run(PersistentRequest& request, const std::vector<Operand>& operands) {
  const std::int64_t since = now_ns();
  const RundownScope scope(rundown_guard_);
  if (!scope || !may_run(request, operands)) return false;
  if (!progress_engine_->run(request, operands, since, ProgressEngine::Try::kMeets)) return false;
  handles_.next();  // every call counts
  return true;
}

Result<TaskPtr> Engine::begin(PersistentRequest& request, const std::vector<Operand>& operands) {
  const std::int64_t since = now_ns();
  const RundownScope scope(rundown_guard_);
  if (!scope || runs_completion() || !may_poll_briefly() || !may_run(request, operands))
    return TaskPtr();
  try {
    may_lack_memory();
    auto task = std::make_shared<Task>();
    task->request.name = request.request.name;
    const bool done = progress_engine_->run(request, operands, since, ProgressEngine::Try::kPasses);
    if (!done) return TaskPtr();
    task->handle = handles_.next();
    task->keeps_name = true;
    handles_.add_done(task);
    return task;
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

Result<TaskPtr> Engine::make_task(Request request, std::vector<Operand> operands,
                                  std::unique_ptr<Completion> completion, Next next, void* stream) {
  if (request.on_device()) {
    if (Status status = has_accelerator(); !status) return status;
  }
  const std::int64_t handle = handles_.next();
  if (forked()) return in_a_child();
  try {
    may_lack_memory();
    auto task = std::make_shared<Task>();
    task->handle = handle;
    task->enqueued_ns = now_ns();
    task->completion = std::move(completion);
    Status status = submit(std::move(request), std::move(operands), task, next, stream);
    if (!status) return status;
    return task;
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

Status Engine::submit(Request request, std::vector<Operand> operands, const TaskPtr& task,
                      Next next, void* stream) {
  const RundownScope scope(rundown_guard_);
  if (request.name.empty()) request.name = name_for(request, task->handle, topology_.rank);
  const auto group = groups_.find(request.set);
  static const std::vector<int> kNoMembers;
  Status status = validate(request, operands, topology_.rank, topology_.size,
                           group == nullptr ? kNoMembers : group->ranks);
  if (!status) return status;
  if (scope) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const bool in_place = operands[i].in == operands[i].out;
      TensorMeta& tensor = request.tensors[i];
      tensor.place = in_place ? regions_->place_of(operands[i].in, tensor.bytes()) : kPrivate;
    }
  }
  if (scope && request.on_device()) {
    Result<DeviceEventPtr> ready = devices_->ready(request.tensors.front().device, stream);
    if (!ready) return ready.status();
    task->ready = ready.take();
  }
  task->small = is_small(request, caller_runs_bytes_);
  const bool held =
      task->small && (next == Next::kWaits || (next == Next::kBegins && may_begin(request, *task)));
  task->held = held;
  task->keeps_name = next != Next::kWaits && task->completion == nullptr;
  task->request = std::move(request);
  task->operands = std::move(operands);
  if (scope && task->request.kind == Kind::kReducescatter) {
    const Result<Placement> placement = devices_->placement(task->request.tensors.front().device);
    if (!placement) return placement.status();
    if (status = find_shares(*task, *group, placement.value()); !status) return status;
  }
  // Numbered last: a call that was refused does not count.
  if (task->request.kind == Kind::kSend) task->request.name = next_name(task->request, *group);
  status = handles_.add(task);
  return !status || !scope || held ? status : request_operation(task);
}

std::string Engine::next_name(const Request& send, const Group& pair) {
  const int other = pair.ranks.front() == send.root ? pair.ranks.back() : pair.ranks.front();
  return message_numbers_.next(send.root, other, send.sizes.front());
}

// If other operations are in flight, this one is queued behind them. A thread that runs a
// completion may already own the progress lock.
bool Engine::may_begin(const Request& request, const Task& task) {
  if (request.bytes() > kBriefBytes || runs_completion() || !handles_.none_in_flight())
    return false;
  return task.completion != nullptr ? brief_help_.due() : may_poll_briefly();
}

// A caller with other work must not wait for peers longer than they need. Without spare cores they
// do not run before this thread has used its time slice. With process sets, ranks that have agreed
// on an operation may have to execute others first, which may take any time.
bool Engine::may_poll_briefly() const {
  return topology_.size == 1 || (spare_cores_ && groups_.only_the_global());
}

void Engine::begin(const TaskPtr& task) {
  if (!task->held) return;
  const RundownScope scope(rundown_guard_);
  if (!scope) return;
  if (task->completion != nullptr) {
    progress_engine_->help(task, Deadline(kBriefly));
    brief_help_.report(!task->done());
  } else {
    progress_engine_->begin(task);
  }
}

bool Engine::is_quick(const Task& task) const {
  return topology_.size == 1 && task.small && task.request.bytes() <= kBriefBytes;
}

Status Engine::request_operation(const TaskPtr& task) {
  try {
    progress_engine_->submit(task->request);
  } catch (const std::bad_alloc&) {
    if (handles_.withdraw(*task)) return no_memory();
  }
  return Status::ok();
}

Status Engine::has_accelerator() {
  const RundownScope scope(rundown_guard_);
  return scope && !forked() ? devices_->available() : Status::ok();
}

std::string Engine::why_not_on(int device) {
  const RundownScope scope(rundown_guard_);
  return scope && !forked() ? devices_->why_not(device) : "";
}

Result<bool> Engine::poll(std::int64_t handle, bool reached) {
  const Result<TaskPtr> lookup = find(handle);
  if (!lookup) return lookup.status();
  const TaskPtr& task = lookup.value();
  if (!task->done()) return false;
  if (reached && task->event != nullptr && !reached_or_lost(*task->event)) return false;
  handles_.free_name(*task);
  return true;
}

Result<TaskPtr> Engine::find(std::int64_t handle) const {
  if (forked()) return in_a_child();
  TaskPtr task = handles_.find(handle);
  if (task == nullptr) return no_such_handle(handle);
  return task;
}

Result<bool> Engine::help(std::int64_t handle, std::chrono::nanoseconds longest) {
  const Result<TaskPtr> task = find(handle);
  if (!task) return task.status();
  return help(task.value(), longest);
}

Result<std::unique_ptr<Outcome>> Engine::wait(std::int64_t handle,
                                              std::chrono::nanoseconds longest) {
  const Result<TaskPtr> lookup = find(handle);
  if (!lookup) return lookup.status();
  const TaskPtr& task = lookup.value();
  if (!help(task, longest)) return std::unique_ptr<Outcome>();
  auto outcome = std::make_unique<Outcome>();
  if (task->ending != nullptr) outcome->status = *task->ending;
  if (!handles_.forget(handle)) return no_such_handle(handle);
  outcome->outputs = std::move(task->outputs);
  outcome->sizes = std::move(task->sizes);
  outcome->number = task->number;
  outcome->event = task->event;
  return outcome;
}

Status Engine::end(const TaskPtr& task) {
  if (!handles_.forget(task->handle)) return no_such_handle(task->handle);
  return task->ending == nullptr ? Status::ok() : *task->ending;
}

bool Engine::help(const TaskPtr& task, std::chrono::nanoseconds longest) {
  if (task->done()) return true;
  const std::int64_t begin = now_ns();
  const Deadline deadline(begin, longest);
  const DeviceWait on_device(handles_.device_waits(), *task);
  if (const RundownScope scope(rundown_guard_); scope) progress_engine_->help(task, deadline);
  const bool done = task->done() || wait_done(*task, deadline.remaining());
  record_wait(counters_, trace_, task->request.name, begin, now_ns());
  return done;
}

std::vector<int> Engine::ranks_of(int set) const {
  const auto group = groups_.find(set);
  return group == nullptr ? std::vector<int>() : group->ranks;
}

SharedPart Engine::part_of(std::int64_t region) const {
  const RundownScope scope(rundown_guard_);
  if (!scope || forked()) return {};
  std::byte* const data = regions_->part_of(region, topology_.rank);
  if (data == nullptr) return {};
  return {mesh_->heap_holder(), data, static_cast<std::size_t>(regions_->bytes_of(region))};
}

Status Engine::start_timeline(const std::string& path, bool mark_cycles, bool append) {
  if (forked()) return in_a_child();
  if (topology_.rank != 0) return Status::ok();
  const MutexLock lock(timeline_mutex_);
  timeline_.reset();  // flushes before the new one begins, perhaps in the same file
  const auto before_read = [this](bool last) { devices_->write_courses(trace_, last); };
  Result<std::unique_ptr<Timeline>> timeline =
      Timeline::start(trace_, path, mark_cycles, before_read, append ? topology_.size : 0);
  if (!timeline) return timeline.status();
  timeline_ = timeline.take();
  if (const RundownScope scope(rundown_guard_); scope)
    progress_engine_->timeline(true, mark_cycles);
  return Status::ok();
}

void Engine::stop_timeline() {
  if (forked()) return;
  const MutexLock lock(timeline_mutex_);
  if (const RundownScope scope(rundown_guard_); scope) progress_engine_->timeline(false, false);
  timeline_.reset();
}

void Engine::abort(const std::string& message) {
  const RundownScope scope(rundown_guard_);
  if (!scope || forked()) return;
  mesh_->raise_everywhere(
      Status::make(Code::kAborted, "Rank " + std::to_string(topology_.rank) + " failed: " + message,
                   "engine/engine", topology_.rank));
}

Status Engine::ended() const {
  if (forked()) return in_a_child();
  {
    const RundownScope scope(rundown_guard_);
    if (scope && mesh_->abort().raised()) return mesh_->abort().cause();
  }
  return handles_.closed();
}

std::vector<Pending> Engine::pending() const {
  if (forked()) return {};
  std::vector<Waiting> waiting;
  std::vector<DeviceOperation> on_devices;
  if (const RundownScope scope(rundown_guard_); scope) {
    waiting = progress_engine_->waiting();
    on_devices = devices_->outstanding();
  }
  std::vector<Pending> all;
  const auto seconds = [now = now_ns()](std::int64_t since) {
    return static_cast<double>(now - since) / 1e9;
  };
  for (const TaskPtr& task : handles_.all_in_flight()) {
    const Request& request = task->request;
    all.push_back({request.name, request.kind, seconds(task->enqueued_ns), request.set, {}});
  }
  for (Waiting& request : waiting) {
    bool in_flight = false;
    for (Pending& pending : all) {
      if (pending.name != request.name || pending.set != request.set) continue;
      pending.missing = request.missing;
      in_flight = true;
    }
    if (in_flight) continue;
    all.push_back({request.name, request.kind, seconds(request.since_ns), request.set,
                   std::move(request.missing)});
  }
  const auto is_listed = [&](const std::string& name, int set) {
    return std::any_of(all.begin(), all.end(), [&](const Pending& pending) {
      return pending.name == name && pending.set == set;
    });
  };
  for (const DeviceOperation& operation : on_devices) {
    for (const std::string& name : operation.names) {
      if (is_listed(name, operation.set)) continue;
      all.push_back({name, operation.kind, seconds(operation.since_ns), operation.set, {}});
    }
  }
  return all;
}

const Counters& Engine::counters() const {
  if (const RundownScope scope(rundown_guard_); scope && !forked()) time_devices();
  return counters_;
}

void Engine::time_devices() const {
  const DeviceTimes times = devices_->times();
  counters_.on_device_ns.store(times.busy_ns, std::memory_order_relaxed);
  counters_.exposed_ns.store(times.exposed_ns, std::memory_order_relaxed);
}

void Engine::park(bool parked) {
  const RundownScope scope(rundown_guard_);
  if (!scope || forked()) return;
  Request request;
  request.kind = Kind::kPark;
  request.sizes = {parked ? 1 : 0};
  progress_engine_->submit(std::move(request));
}

void Engine::blocked(const Blocked& blocked) {
  const RundownScope scope(rundown_guard_);
  if (!scope || forked()) return;
  progress_engine_->submit(request_of(blocked));
}

}  // namespace hvd
