#include "engine/engine.h"

#include "base/deadline.h"
#include "engine/validate.h"

namespace hvd {
namespace {

// How long shutdown() waits for its turn before it goes without.
constexpr double kLeaveSeconds = 10;

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

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(int rank, int size, Bootstrap& bootstrap,
                                              const EngineOptions& options) {
  Result<std::unique_ptr<Mesh>> mesh = connect_mesh(rank, size, bootstrap, options.mesh);
  if (!mesh) return mesh.status();
  return std::make_unique<Engine>(mesh.take(), options);
}

Engine::Engine(std::unique_ptr<Mesh> mesh, const EngineOptions& options)
    : topology_(mesh->topology()),
      transports_(transports_of(*mesh)),
      trace_(options.trace_capacity),
      mesh_(std::move(mesh)),
      coordinator_(std::make_unique<Coordinator>(*mesh_, options, handles_, counters_, trace_)),
      thread_([this] {
        coordinator_->run();
        stopped_.store(1, std::memory_order_release);
        futex_wake_all(stopped_);
      }) {}

Engine::~Engine() { shutdown(); }

std::string Engine::transport_to(int peer) const {
  const bool known = peer >= 0 && peer < topology_.size;
  return known ? transports_[static_cast<std::size_t>(peer)] : "";
}

Result<std::int64_t> Engine::enqueue(Request request, std::vector<Operand> operands) {
  auto task = std::make_shared<Task>();
  task->handle = handles_.next();
  task->enqueued_ns = now_ns();
  if (request.name.empty()) {
    request.name =
        std::string(lower_name_of(request.kind)) + ".noname." + std::to_string(task->handle);
  }
  if (Status status = validate(request, operands, topology_.size); !status) return status;
  task->request = request;
  task->operands = std::move(operands);
  if (Status status = handles_.add(task); !status) return status;
  const std::lock_guard<std::mutex> lock(life_mutex_);
  if (coordinator_ != nullptr) coordinator_->submit(std::move(request));
  return task->handle;
}

Result<bool> Engine::poll(std::int64_t handle) const {
  const std::shared_ptr<Task> task = handles_.find(handle);
  if (task == nullptr) return no_such_handle(handle);
  return task->done();
}

Result<std::unique_ptr<Outcome>> Engine::wait(std::int64_t handle,
                                              std::chrono::nanoseconds longest) {
  const std::shared_ptr<Task> task = handles_.find(handle);
  if (task == nullptr) return no_such_handle(handle);
  const std::int64_t begin = now_ns();
  const bool done = wait_done(*task, longest);
  counters_.wait_ns.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  if (!done) return std::unique_ptr<Outcome>();
  handles_.forget(handle);
  return std::make_unique<Outcome>(Outcome{task->status, task->output});
}

void Engine::abort(const std::string& message) {
  const std::lock_guard<std::mutex> lock(life_mutex_);
  if (mesh_ == nullptr) return;
  mesh_->raise_everywhere(
      Status::make(Code::kAborted, "Rank " + std::to_string(topology_.rank) + " failed: " + message,
                   "engine/engine", topology_.rank));
}

Status Engine::ended() const {
  {
    const std::lock_guard<std::mutex> lock(life_mutex_);
    if (mesh_ != nullptr && mesh_->abort().raised()) return mesh_->abort().cause();
  }
  return handles_.closed();
}

std::vector<Pending> Engine::pending() const {
  std::vector<Waiting> waiting;
  {
    const std::lock_guard<std::mutex> lock(life_mutex_);
    if (coordinator_ != nullptr) waiting = coordinator_->waiting();
  }
  std::vector<Pending> all;
  const auto seconds = [now = now_ns()](std::int64_t since) {
    return static_cast<double>(now - since) / 1e9;
  };
  for (const auto& task : handles_.all_in_flight()) {
    all.push_back({task->request.name, task->request.kind, seconds(task->enqueued_ns), {}});
  }
  for (Waiting& one : waiting) {
    bool mine = false;
    for (Pending& pending : all) {
      if (pending.name != one.name) continue;
      pending.missing = one.missing;
      mine = true;
    }
    if (!mine) all.push_back({one.name, one.kind, seconds(one.since_ns), std::move(one.missing)});
  }
  return all;
}

void Engine::shutdown() {
  const std::lock_guard<std::mutex> once(shutdown_mutex_);
  if (mesh_ == nullptr) return;
  leave_in_time();
  thread_.join();
  mesh_->leave();
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<Mesh> mesh;
  const std::lock_guard<std::mutex> lock(life_mutex_);
  coordinator = std::move(coordinator_);
  mesh = std::move(mesh_);
}

void Engine::leave_in_time() {
  Request leave;
  leave.kind = Kind::kLeave;
  coordinator_->submit(std::move(leave));
  const Deadline deadline = Deadline::after_seconds(kLeaveSeconds);
  while (stopped_.load(std::memory_order_acquire) == 0 && !deadline.expired()) {
    futex_wait(stopped_, 0, deadline.remaining());
  }
  if (stopped_.load(std::memory_order_acquire) == 0) {
    mesh_->raise_everywhere(shut_down_by(topology_.rank));
  }
}

}  // namespace hvd
