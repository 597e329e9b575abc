#include "engine/execution/executor.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "engine/execution/eager.h"
#include "engine/execution/outputs.h"

namespace hvd {
namespace {

const char* negotiate_phase(Kind kind) {
  static constexpr std::array<const char*, kKindCount> kPhases{
      "NEGOTIATE_ALLREDUCE", "NEGOTIATE_ALLGATHER", "NEGOTIATE_BROADCAST",     "NEGOTIATE_BARRIER",
      "NEGOTIATE_LEAVE",     "NEGOTIATE_ALLTOALL",  "NEGOTIATE_REDUCESCATTER", "NEGOTIATE_JOIN",
      "NEGOTIATE_ADDSET",    "NEGOTIATE_REMOVESET", "NEGOTIATE_ALLOCATE",      "NEGOTIATE_RELEASE",
      "NEGOTIATE_TUNE",      "NEGOTIATE_PARK",      "NEGOTIATE_BLOCKED",       "NEGOTIATE_SEND",
      "NEGOTIATE_PROBE"};
  return kPhases[static_cast<std::size_t>(kind)];
}

Status not_requested(const Work& work) {
  const std::vector<std::string>& names = work.response.names;
  return Status::make(Code::kInternal,
                      "rank 0 sent a response for " + (names.empty() ? "nothing" : names.front()) +
                          " and others, which this rank has not requested",
                      "engine/executor");
}

// Rank 0 fuses only tensors that lie on one device on every rank (fusion.h).
Status several_devices(const Work& work) {
  return Status::make(Code::kInternal,
                      "rank 0 fused tensors that lie on different devices of this rank: " +
                          work.response.names.front() + " and others",
                      "engine/executor");
}

DeviceOperation operation_of(const Work& work) {
  DeviceOperation operation;
  operation.names = work.response.names;
  operation.kind = work.response.kind;
  operation.set = work.response.set;
  operation.device = work.device();
  operation.since_ns = now_ns();
  std::int64_t newest = -1;
  for (const TaskPtr& task : work.tasks) {
    if (task == nullptr || task->enqueued_ns <= newest) continue;
    newest = task->enqueued_ns;
    operation.ready = task->ready;
  }
  return operation;
}

// Operations that send a tensor to every member move more than the tensor's bytes.
std::int64_t bytes_moved(const Work& work, const Group* group) {
  const Kind kind = work.response.kind;
  const bool spreads = kind == Kind::kAllgather || kind == Kind::kAlltoall;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < work.tasks.size(); ++i) {
    if (const Request* request = work.request(i)) bytes += request->bytes();
  }
  return spreads && group != nullptr ? bytes * group->size() : bytes;
}

TraceTensor tensor_of(const Work& work, const Task& task) {
  TraceTensor tensor;
  tensor.since_ns = task.enqueued_ns;
  tensor.bytes = task.request.bytes();
  tensor.together = static_cast<std::int64_t>(work.tasks.size());
  tensor.dtype = dtype_text(task.request);
  return tensor;
}

const char* meeting_phase(std::string_view algorithm) {
  return algorithm.rfind("NCCL", 0) == 0 ? "INIT_NCCL" : "INIT_DEVICES";
}

void set_number(const Work& work, std::int64_t number) {
  for (const TaskPtr& task : work.tasks) {
    if (task != nullptr) task->number = number;
  }
}

// Free the results that were allocated before another allocation failed.
void forget_results(const Work& work) {
  for (const TaskPtr& task : work.tasks) {
    if (task == nullptr) continue;
    task->outputs.clear();
    task->sizes.clear();
  }
}

bool complete(const Work& work) {
  return std::find(work.tasks.begin(), work.tasks.end(), nullptr) == work.tasks.end();
}

}  // namespace

Executor::Executor(const Parts& parts, const AlgorithmOptions& algorithms)
    : rank_(parts.mesh.topology().rank), parts_(parts), algorithms_(algorithms) {}

Work Executor::prepare(Response response) const {
  Work work;
  work.response = std::move(response);
  work.tasks.reserve(work.response.names.size());
  for (const std::string& name : work.response.names) {
    work.tasks.push_back(parts_.handles.in_flight(work.response.set, name));
  }
  // Each rank's join has its own name.
  if (work.response.kind == Kind::kJoin) work.tasks = {parts_.handles.in_flight(Kind::kJoin)};
  work.bytes = bytes_moved(work, parts_.groups.find(work.response.set).get());
  work.agreed_ns = now_ns();
  return work;
}

Status Executor::perform(const Work& work) {
  const Response& response = work.response;
  if (!response.status) {
    finish_all(work, std::make_shared<const Status>(response.status));
    return Status::ok();
  }
  failpoint("engine.before_operation");
  refusal_ = nullptr;
  used_ = nullptr;
  placement_ = {};
  done_ = nullptr;
  met_ns_ = allocated_ns_ = 0;
  const std::int64_t begin = now_ns();
  Status status = perform_agreed(work);
  if (status && placement_.accelerator != nullptr) status = end_on_device(work);
  if (scratch_.bytes > 0) scratch_ = {};
  if (!status) {
    if (status.code == Code::kUnavailable && status.rank < 0) status.rank = rank_;
    return status;
  }
  failpoint("engine.after_operation");
  record(work, begin);
  done_ = nullptr;
  finish_all(work, refusal_);
  return Status::ok();
}

Status Executor::perform_agreed(const Work& work) {
  static constexpr std::array<Step, kKindCount> kSteps{
      &Executor::allreduce,  &Executor::allgather,     &Executor::broadcast,
      &Executor::nothing,  // a barrier: the agreement is the barrier
      &Executor::nothing,  // the progress engine handles departures
      &Executor::alltoall,   &Executor::reducescatter, &Executor::join,      &Executor::add_set,
      &Executor::remove_set, &Executor::allocate,      &Executor::release,   &Executor::tune,
      &Executor::nothing,                           // requests without a response
      &Executor::nothing,    &Executor::broadcast,  // a send is a broadcast between two ranks
      &Executor::join};                             // a probe returns a rank, as a join does
  return (this->*kSteps[static_cast<std::size_t>(work.response.kind)])(work);
}

Status Executor::nothing(const Work&) { return Status::ok(); }

Status Executor::allreduce(const Work& work) {
  for (std::size_t i = 0; i < work.tasks.size(); ++i) {
    if (work.request(i) == nullptr) return not_requested(work);
  }
  const auto group = group_of(work);
  if (!group) return group.status();
  const auto backend = backend_of(work, *group.value());
  if (!backend) return backend.status();
  const bool shared = work.response.shared && work.response.absent.empty();
  Result<std::vector<Pass>> passes = passes_of(work, shared, placement_, scratch_);
  if (Status status = vote(work, *group.value(), passes.status()); !status || refusal_ != nullptr) {
    return status;
  }
  for (Pass& pass : passes.value()) {
    Reduction reduction = reduction_of(*work.request(0), *group.value());
    reduction.dtype = pass.dtype;
    prescale_own(pass, reduction);
    const auto offsets =
        offsets_of(parts_.regions, parts_.mesh.topology(), *group.value(), pass.region);
    Status status =
        work.response.eager ? allreduce_eagerly(parts_, *group.value(), pass.operands, reduction)
        : work.response.fast_path_half >= 0
            ? allreduce_beside(parts_, *group.value(), pass.operands, reduction,
                               work.response.fast_path_half)
        : offsets.empty()
            ? backend.value()->allreduce(*group.value(), pass.operands, reduction)
            : backend.value()->allreduce_shared(*group.value(), pass.operands, offsets, reduction);
    if (!status) return status;
  }
  return Status::ok();
}

Status Executor::broadcast(const Work& work) {
  if (!complete(work)) return not_requested(work);
  const auto group = group_of(work);
  if (!group) return group.status();
  const auto backend = backend_of(work, *group.value());
  if (!backend) return backend.status();
  std::vector<Operand> bytes;
  for (const TaskPtr& task : work.tasks) {
    for (std::size_t i = 0; i < task->operands.size(); ++i) {
      Operand operand = task->operands[i];
      operand.count *= size_of(task->request.tensors[i].dtype);
      bytes.push_back(operand);
    }
  }
  const std::vector<int>& ranks = group.value()->ranks;
  const auto root = std::find(ranks.begin(), ranks.end(), work.request(0)->root);
  return backend.value()->broadcast(*group.value(), bytes, static_cast<int>(root - ranks.begin()));
}

Status Executor::allgather(const Work& work) {
  if (!complete(work)) return not_requested(work);
  const auto group = group_of(work);
  if (!group) return group.status();
  if (Status status = sizes_fit(work, *group.value()); !status) return status;
  const auto backend = backend_of(work, *group.value());
  if (!backend) return backend.status();
  const Result<std::vector<Gather>> tensors = gathers_of(work, *group.value(), placement_);
  allocated_ns_ = now_ns();
  if (Status status = vote(work, *group.value(), tensors.status());
      !status || refusal_ != nullptr) {
    return status;
  }
  return backend.value()->allgather(*group.value(), tensors.value());
}

Status Executor::alltoall(const Work& work) {
  if (!complete(work)) return not_requested(work);
  const auto group = group_of(work);
  if (!group) return group.status();
  if (Status status = sizes_fit(work, *group.value()); !status) return status;
  const auto backend = backend_of(work, *group.value());
  if (!backend) return backend.status();
  const Result<Exchange> exchange =
      exchange_of(*work.tasks.front(), *group.value(), work.response.sizes, placement_);
  allocated_ns_ = now_ns();
  if (Status status = vote(work, *group.value(), exchange.status());
      !status || refusal_ != nullptr) {
    return status;
  }
  return backend.value()->alltoall(*group.value(), exchange.value());
}

Status Executor::reducescatter(const Work& work) {
  if (!complete(work)) return not_requested(work);
  const auto group = group_of(work);
  if (!group) return group.status();
  const auto backend = backend_of(work, *group.value());
  if (!backend) return backend.status();
  std::vector<std::pair<Dtype, std::vector<Scatter>>> by_dtype;  // in order of appearance
  for (const TaskPtr& task : work.tasks) {
    for (std::size_t i = 0; i < task->request.tensors.size(); ++i) {
      const Dtype dtype = task->request.tensors[i].dtype;
      auto pass = std::find_if(by_dtype.begin(), by_dtype.end(),
                               [&](const auto& one) { return one.first == dtype; });
      if (pass == by_dtype.end()) pass = by_dtype.insert(pass, {dtype, {}});
      pass->second.push_back(scatter_of(*task, i, *group.value()));
    }
  }
  Reduction reduction = reduction_of(*work.request(0), *group.value());
  for (const auto& [dtype, scatters] : by_dtype) {
    reduction.dtype = dtype;
    Status status = backend.value()->reducescatter(*group.value(), scatters, reduction);
    if (!status) return status;
  }
  return Status::ok();
}

Status Executor::join(const Work& work) {
  set_number(work, work.response.rank);
  return Status::ok();
}

Status Executor::add_set(const Work& work) {
  const std::vector<std::int64_t>& sizes = work.response.sizes;
  if (sizes.empty()) return not_requested(work);
  parts_.groups.set(static_cast<int>(sizes.front()), {sizes.begin() + 1, sizes.end()});
  set_number(work, sizes.front());
  return Status::ok();
}

Status Executor::remove_set(const Work& work) {
  if (work.response.sizes.empty()) return not_requested(work);
  const bool known = parts_.groups.erase(static_cast<int>(work.response.sizes.front()));
  set_number(work, known ? 1 : 0);
  return Status::ok();
}

// The ranks of a host compute the same offset without messages. Whether all hosts have the memory
// is voted on.
Status Executor::allocate(const Work& work) {
  if (work.response.sizes.size() < 2) return not_requested(work);
  if (work.response.sizes.size() > 2) return allocate_on_devices(work);
  const std::int64_t region = work.response.sizes[0];
  const Status mine = parts_.regions.allocate(region, work.response.sizes[1]);
  const Result<int> failing = first_failing_rank(!mine);
  if (!failing) return failing.status();
  set_number(work, region);
  if (failing.value() == parts_.mesh.topology().size) return Status::ok();
  parts_.regions.release(region);
  const std::string why = mine ? "there is none on its host, or not enough" : mine.message;
  refusal_ = std::make_shared<const Status>(
      Status::make(Code::kUnavailable,
                   "no shared memory of " + std::to_string(work.response.sizes[1]) +
                       " bytes for rank " + std::to_string(failing.value()) + " (" + why + ")",
                   "engine/executor", failing.value()));
  return Status::ok();
}

// All ranks reach the same result; ranks that have joined take part.
Status Executor::allocate_on_devices(const Work& work) {
  const std::int64_t region = work.response.sizes[0], bytes = work.response.sizes[1];
  const int device = complete(work) ? work.device() : kAnyDevice;
  Result<DeviceRegion> memory =
      parts_.devices.share(device, *parts_.groups.find(0), static_cast<std::size_t>(bytes));
  if (!memory) {
    if (parts_.mesh.abort().raised() || !parts_.devices.available()) return memory.status();
    refusal_ = std::make_shared<const Status>(
        Status::make(Code::kUnavailable,
                     "no device memory of " + std::to_string(bytes) +
                         " bytes that the ranks share: " + memory.status().message,
                     "engine/executor", memory.status().rank));
    return Status::ok();
  }
  for (const TaskPtr& task : work.tasks) {
    if (task == nullptr) continue;
    auto buffer = std::make_shared<Buffer>();
    buffer->adopt(memory.value().mine, static_cast<std::size_t>(bytes), device);
    task->outputs = {std::move(buffer)};
  }
  parts_.regions.adopt(region, memory.take(), bytes);
  set_number(work, region);
  return Status::ok();
}

Status Executor::release(const Work& work) {
  if (work.response.sizes.empty()) return not_requested(work);
  const std::int64_t region = work.response.sizes.front();
  const bool on_devices = parts_.regions.is_on_devices(region);
  Status status = on_devices ? parts_.devices.drain() : Status::ok();
  // Peers may still execute earlier operations in memory that is released here.
  if (status) status = meet();
  if (!status) return status;
  auto adopted = parts_.regions.release(region);
  return adopted ? return_memory(std::move(*adopted)) : status;
}

Status Executor::return_memory(DeviceRegion region) {
  parts_.devices.release(region);
  region.mapping.reset();
  // No rank frees memory that a peer has mapped.
  if (Status status = meet(); !status) return status;
  region.mine.reset();
  // The free may wait for the whole device, also for ranks that are threads of this process: no
  // rank enqueues work until all have freed.
  return meet();
}

Status Executor::tune(const Work& work) {
  algorithms_.hierarchical_allreduce = work.response.tunables.hierarchical_allreduce;
  algorithms_.hierarchical_allgather = work.response.tunables.hierarchical_allgather;
  parts_.backends.set_options(algorithms_);
  return Status::ok();
}

Status Executor::meet() { return first_failing_rank(false).status(); }

// The first rank that failed, the same on every rank; the number of ranks: none failed.
Result<int> Executor::first_failing_rank(bool failed) {
  return first_failing(parts_.backends.cpu(), *parts_.groups.find(0), failed);
}

Status Executor::vote(const Work& work, const Group& group, const Status& mine) {
  const Result<Ending> refusal = vote_on_memory(parts_.backends.cpu(), work, group, mine);
  if (!refusal) return refusal.status();
  refusal_ = refusal.value();
  if (refusal_ != nullptr) forget_results(work);
  return Status::ok();
}

Result<std::shared_ptr<const Group>> Executor::group_of(const Work& work) const {
  auto group = parts_.groups.find(work.response.set);
  if (group != nullptr && group->group_rank >= 0) return group;
  return Status::make(Code::kInternal,
                      "rank " + std::to_string(parts_.mesh.topology().rank) + " was asked to run " +
                          work.response.names.front() + " in process set " +
                          std::to_string(work.response.set) + ", of which it is not a member",
                      "engine/executor");
}

Result<Backend*> Executor::backend_of(const Work& work, const Group& group) {
  used_ = &parts_.backends.cpu();
  if (work.device() != kCpu) {
    if (Status status = begin_on_device(work, group); !status) return status;
  }
  return used_;
}

Status Executor::begin_on_device(const Work& work, const Group& group) {
  const int device = work.device();
  std::vector<DeviceEventPtr> ready;
  for (const TaskPtr& task : work.tasks) {
    const int task_device = task == nullptr ? kAnyDevice : task->request.tensors.front().device;
    if (task_device != device) return several_devices(work);
    if (task != nullptr) ready.push_back(task->ready);
  }
  const auto begun =
      parts_.devices.begin(operation_of(work), group, whole_bytes(work, group), ready);
  if (!begun) return begun.status();
  used_ = begun.value().backend;
  placement_ = begun.value().placement;
  if (begun.value().first) met_ns_ = now_ns();
  return Status::ok();
}

// Finish the tasks without waiting for the device; their event marks the outputs as ready.
Status Executor::end_on_device(const Work& work) {
  const Result<DeviceEventPtr> done = parts_.devices.end();
  if (!done) return done.status();
  done_ = done.value();
  for (const TaskPtr& task : work.tasks) {
    if (task != nullptr) task->event = done.value();
  }
  return Status::ok();
}

void Executor::finish_all(const Work& work, const Ending& ending) {
  for (const TaskPtr& task : work.tasks) {
    if (task != nullptr) parts_.handles.finish(task, ending);
  }
}

void Executor::timeline(bool on) {
  timeline_.store(on, std::memory_order_relaxed);
  if (on) parts_.devices.keep_courses();
}

void Executor::record(const Work& work, std::int64_t begin_ns) {
  const std::int64_t end = now_ns();
  TraceCourse course(negotiate_phase(work.response.kind), name_of(work.response.kind),
                     work.agreed_ns > 0 ? work.agreed_ns : begin_ns);
  if (work.agreed_ns > 0 && (met_ns_ > 0 || done_ == nullptr)) course.step("QUEUE", begin_ns);
  if (met_ns_ > 0) course.step(meeting_phase(used_->last_algorithm()), met_ns_);
  std::int64_t ops = 0, bytes = 0;
  for (const TaskPtr& task : work.tasks) {
    if (task == nullptr) continue;
    bytes += task->request.bytes();
    ++ops;
  }
  parts_.counters.bytes.fetch_add(bytes, std::memory_order_relaxed);
  parts_.counters.ops.fetch_add(ops, std::memory_order_relaxed);
  if (done_ != nullptr) return record_on_device(work, course, begin_ns, end);
  parts_.counters.busy_ns.fetch_add(end - begin_ns, std::memory_order_relaxed);
  if (allocated_ns_ > 0) course.step("ALLOCATE_OUTPUT", allocated_ns_);
  const char* const algorithm = used_ == nullptr ? "" : used_->last_algorithm();
  if (*algorithm != '\0') course.step(algorithm, end);
  course.end(end);
  const bool whole = timeline_.load(std::memory_order_relaxed);
  for (const TaskPtr& task : work.tasks) {
    if (task == nullptr) continue;
    TraceTensor tensor = tensor_of(work, *task);
    tensor.name = task->request.name;
    const std::string shape = whole ? shapes_text(task->request) : "";
    tensor.shape = shape;
    if (!whole) tensor.dtype = "";
    parts_.trace.add(course, tensor);
  }
}

// Without device times the operation is traced at once, with the duration of enqueueing.
void Executor::record_on_device(const Work& work, const TraceCourse& course, std::int64_t begin_ns,
                                std::int64_t end_ns) {
  DeviceCourse done{course, used_->last_algorithm(), begin_ns, end_ns, {}, done_};
  for (const TaskPtr& task : work.tasks) {
    if (task == nullptr) continue;
    done.tensors.push_back(
        {task->request.name, shapes_text(task->request), tensor_of(work, *task)});
  }
  if (done_->captured() || !parts_.devices.keep(done)) done.write(parts_.trace);
}

}  // namespace hvd
