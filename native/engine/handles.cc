#include "engine/handles.h"

#include <utility>

#include "base/deadline.h"

namespace hvd {
namespace {

void complete(Task& task, Status status) {
  task.status = std::move(status);
  if (task.state.exchange(Task::kDone, std::memory_order_acq_rel) == Task::kWaitedFor) {
    futex_wake_all(task.state);
  }
}

}  // namespace

Status Handles::add(const std::shared_ptr<Task>& task) {
  Status closed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed = closed_;
    if (closed.is_ok() && !by_name_.emplace(task->request.name, task).second) {
      return Status::make(
          Code::kInvalidArgument,
          "Requested to allreduce, allgather, or broadcast a tensor with the same name as "
          "another tensor that is currently being processed.  If you want to request "
          "another tensor, use a different tensor name. (" +
              task->request.name + ")",
          "engine/handles");
    }
    by_handle_.emplace(task->handle, task);
  }
  if (!closed.is_ok()) complete(*task, std::move(closed));
  return Status::ok();
}

std::shared_ptr<Task> Handles::find(std::int64_t handle) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? nullptr : found->second;
}

void Handles::forget(std::int64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  by_handle_.erase(handle);
}

std::shared_ptr<Task> Handles::in_flight(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<Task>> Handles::all_in_flight() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<Task>> tasks;
  tasks.reserve(by_name_.size());
  for (const auto& [name, task] : by_name_) tasks.push_back(task);
  return tasks;
}

void Handles::finish(const std::shared_ptr<Task>& task, Status status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_name_.find(task->request.name);
    if (found == by_name_.end() || found->second != task) return;  // closed meanwhile
    by_name_.erase(found);
  }
  complete(*task, std::move(status));
}

void Handles::close(const Status& status) {
  std::unordered_map<std::string, std::shared_ptr<Task>> rest;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.is_ok()) return;
    closed_ = status;
    rest = std::exchange(by_name_, {});
  }
  for (const auto& [name, task] : rest) complete(*task, status);
}

Status Handles::closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

bool wait_done(Task& task, std::chrono::nanoseconds longest) {
  const Deadline deadline(longest);
  std::uint32_t seen = Task::kRunning;
  task.state.compare_exchange_strong(seen, Task::kWaitedFor, std::memory_order_acq_rel);
  while (!task.done()) {
    const auto left = deadline.remaining();
    if (left.count() == 0) return false;
    futex_wait(task.state, Task::kWaitedFor, left);
  }
  return true;
}

}  // namespace hvd
