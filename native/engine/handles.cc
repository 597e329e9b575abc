#include "engine/handles.h"

#include <utility>

#include "base/deadline.h"

namespace hvd {
namespace {

constexpr std::size_t kUsualInFlight = 256;

void complete(Task& task, const Ending& ending) {
  task.ending = ending;
  if (task.state.exchange(Task::kDone, std::memory_order_acq_rel) == Task::kWaitedFor) {
    futex_wake_all(task.state);
  }
}

Status name_taken(const std::string& name) {
  return Status::make(Code::kInvalidArgument,
                      "Requested to allreduce, allgather, or broadcast a tensor with the same name "
                      "as another tensor that is currently being processed.  If you want to "
                      "request another tensor, use a different tensor name. (" +
                          name + ")",
                      "engine/handles");
}

}  // namespace

Handles::Handles() {
  by_handle_.reserve(kUsualInFlight);
  by_name_.reserve(kUsualInFlight);
}

Status Handles::add(const TaskPtr& task) {
  Ending closed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed = closed_;
    const auto known = by_handle_.emplace(task->handle, task).first;
    const Key key{task->request.set, task->request.name};
    try {
      if (closed == nullptr && !by_name_.emplace(key, task).second) {
        by_handle_.erase(known);
        return name_taken(task->request.name);
      }
    } catch (...) {  // no memory: nothing has happened
      by_handle_.erase(known);
      throw;
    }
  }
  if (closed != nullptr) complete(*task, closed);
  return Status::ok();
}

TaskPtr Handles::find(std::int64_t handle) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? nullptr : found->second;
}

bool Handles::forget(std::int64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_handle_.erase(handle) == 1;
}

TaskPtr Handles::in_flight(int set, std::string_view name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = by_name_.find(Key{set, name});
  return found == by_name_.end() ? nullptr : found->second;
}

TaskPtr Handles::in_flight(Kind kind) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, task] : by_name_) {
    if (task->request.kind == kind) return task;
  }
  return nullptr;
}

std::vector<TaskPtr> Handles::all_in_flight() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TaskPtr> tasks;
  tasks.reserve(by_name_.size());
  for (const auto& [key, task] : by_name_) tasks.push_back(task);
  return tasks;
}

void Handles::finish(const TaskPtr& task, const Ending& ending) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_name_.find(Key{task->request.set, task->request.name});
    if (found == by_name_.end() || found->second != task) return;  // closed meanwhile
    by_name_.erase(found);
  }
  complete(*task, ending);
}

void Handles::close(const Ending& ending) noexcept {
  std::unordered_map<Key, TaskPtr, Hash> rest;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ != nullptr) return;
    closed_ = ending;
    rest.swap(by_name_);
  }
  for (const auto& [key, task] : rest) complete(*task, ending);
}

Status Handles::closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_ == nullptr ? Status::ok() : *closed_;
}

bool wait_done(Task& task, std::chrono::nanoseconds longest) {
  if (task.done()) return true;
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
