#include "engine/executor.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/deadline.h"

namespace hvd {
namespace {

const char* negotiate_phase(Kind kind) {
  static constexpr std::array<const char*, kKindCount> kPhases{
      "NEGOTIATE_ALLREDUCE", "NEGOTIATE_ALLGATHER", "NEGOTIATE_BROADCAST", "NEGOTIATE_BARRIER",
      "NEGOTIATE_LEAVE"};
  return kPhases[static_cast<std::size_t>(kind)];
}

struct Pass {
  Dtype dtype;
  std::vector<Operand> operands;
};

// One pass round the ring per dtype, in the order in which the dtypes appear. All ranks cut alike.
std::vector<Pass> passes_of(const std::vector<std::shared_ptr<Task>>& tasks) {
  std::vector<Pass> passes;
  for (const auto& task : tasks) {
    for (std::size_t i = 0; i < task->operands.size(); ++i) {
      const Dtype dtype = task->request.tensors[i].dtype;
      auto pass = std::find_if(passes.begin(), passes.end(),
                               [&](const Pass& one) { return one.dtype == dtype; });
      if (pass == passes.end()) pass = passes.insert(pass, Pass{dtype, {}});
      pass->operands.push_back(task->operands[i]);
    }
  }
  return passes;
}

}  // namespace

Executor::Executor(Mesh& mesh, Handles& handles, Counters& counters, Trace& trace)
    : rank_(mesh.topology().rank),
      size_(mesh.topology().size),
      handles_(handles),
      counters_(counters),
      trace_(trace),
      backends_(mesh) {}

Status Executor::perform(const Response& response) {
  const Tasks tasks = tasks_of(response);
  if (!response.status) {
    for (const auto& task : tasks) handles_.finish(task, response.status);
    return Status::ok();
  }
  if (tasks.size() != response.names.size()) {
    return Status::make(Code::kInternal,
                        "rank 0 agreed on " + response.names.front() +
                            " and others, which this rank has not asked for",
                        "engine/executor");
  }
  const std::int64_t begin = now_ns();
  Status status = run(response, tasks);
  if (!status) return status;
  note(response, tasks, begin);
  for (const auto& task : tasks) handles_.finish(task, Status::ok());
  return status;
}

Executor::Tasks Executor::tasks_of(const Response& response) const {
  Tasks tasks;
  for (const std::string& name : response.names) {
    if (auto task = handles_.in_flight(name)) tasks.push_back(std::move(task));
  }
  return tasks;
}

Status Executor::run(const Response& response, const Tasks& tasks) {
  switch (response.kind) {
    case Kind::kAllreduce:
      return allreduce(tasks);
    case Kind::kBroadcast:
      return broadcast(tasks);
    case Kind::kAllgather:
      return allgather(response, *tasks.front());
    case Kind::kBarrier:  // the agreement was the barrier
    case Kind::kLeave:
      return Status::ok();
  }
  return Status::ok();
}

Status Executor::allreduce(const Tasks& tasks) {
  const Request& request = tasks.front()->request;
  const Result<Backend*> backend = backends_.select(request.tensors.front().device);
  if (!backend) return backend.status();
  Scaling scaling;
  scaling.before = request.prescale;
  scaling.after = request.postscale;
  if (request.op == ReduceOp::kAverage) scaling.divisor = size_;
  for (const Pass& pass : passes_of(tasks)) {
    Status status = backend.value()->allreduce(pass.operands, pass.dtype, scaling);
    if (!status) return status;
  }
  return Status::ok();
}

Status Executor::broadcast(const Tasks& tasks) {
  const Request& request = tasks.front()->request;
  const Result<Backend*> backend = backends_.select(request.tensors.front().device);
  if (!backend) return backend.status();
  std::vector<Operand> bytes;
  for (const auto& task : tasks) {
    for (std::size_t i = 0; i < task->operands.size(); ++i) {
      Operand operand = task->operands[i];
      operand.count *= size_of(task->request.tensors[i].dtype);
      bytes.push_back(operand);
    }
  }
  return backend.value()->broadcast(bytes, request.root);
}

Status Executor::allgather(const Response& response, Task& task) {
  const TensorMeta& tensor = task.request.tensors.front();
  const Result<Backend*> backend = backends_.select(tensor.device);
  if (!backend) return backend.status();
  auto output = std::make_shared<Buffer>();
  output->dtype = tensor.dtype;
  output->shape = tensor.shape;
  output->shape.front() = 0;
  TensorMeta row = tensor;
  row.shape.front() = 1;
  const auto row_bytes = static_cast<std::size_t>(row.bytes());
  for (const std::int64_t rows : response.rows) output->shape.front() += rows;
  output->bytes = static_cast<std::size_t>(output->shape.front()) * row_bytes;
  if (!output->allocate()) {
    return Status::make(Code::kUnavailable,
                        "no memory for the " + std::to_string(output->bytes) + " bytes that " +
                            task.request.name + " gathers",
                        "engine/executor", rank_);
  }
  std::vector<Operand> blocks;
  std::byte* at = output->data();
  for (std::size_t r = 0; r < response.rows.size(); ++r) {
    const std::size_t bytes = static_cast<std::size_t>(response.rows[r]) * row_bytes;
    const bool mine = r == static_cast<std::size_t>(rank_);
    blocks.push_back({mine ? task.operands.front().in : nullptr, at, bytes});
    at += bytes;
  }
  task.output = std::move(output);
  return backend.value()->allgather(blocks);
}

void Executor::note(const Response& response, const Tasks& tasks, std::int64_t begin_ns) {
  const std::int64_t end = now_ns();
  for (const auto& task : tasks) {
    const std::int64_t bytes = task->request.bytes();
    trace_.add(task->enqueued_ns, begin_ns - task->enqueued_ns, negotiate_phase(response.kind),
               task->request.name, bytes);
    trace_.add(begin_ns, end - begin_ns, name_of(response.kind), task->request.name, bytes);
    counters_.bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  counters_.ops.fetch_add(static_cast<std::int64_t>(tasks.size()), std::memory_order_relaxed);
  counters_.busy_ns.fetch_add(end - begin_ns, std::memory_order_relaxed);
}

}  // namespace hvd
