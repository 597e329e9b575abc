#include "engine/execution/handles.h"

#include <utility>

#include "base/deadline.h"

namespace hvd {
namespace {

constexpr std::size_t kUsualInFlight = 256;

Status name_taken(const std::string& name) {
  return Status::make(Code::kInvalidArgument,
                      "Requested to allreduce, allgather, or broadcast a tensor with the same name "
                      "as another tensor that is currently being processed.  If you want to "
                      "request another tensor, use a different tensor name. (" +
                          name + ")",
                      "engine/handles");
}

}  // namespace

// The completions that this thread runs, one after another. Waiting tasks are an intrusive list, so
// it needs no memory.
class CompletionRun {
 public:
  static bool active() { return last_ != nullptr; }

  static void run(TaskPtr task) noexcept {
    Completion* const newest = task->completion.get();
    if (active()) {
      last_->next_ = std::move(task);
      last_ = newest;
      return;
    }
    last_ = newest;
    while (task != nullptr) {
      task->completion->ended(*task);
      task->outputs.clear();
      if (last_ == task->completion.get()) last_ = nullptr;
      task = std::exchange(task->completion->next_, nullptr);
    }
  }

 private:
  static thread_local Completion* last_;  // nullptr: none is running
};
thread_local Completion* CompletionRun::last_ = nullptr;

bool runs_completion() { return CompletionRun::active(); }

namespace {

void complete(const TaskPtr& task, const Ending& ending) {
  task->ending = ending;
  if (task->state.exchange(Task::kDone, std::memory_order_acq_rel) == Task::kWaitedFor) {
    futex_wake_all(task->state);
  }
  if (task->completion != nullptr) CompletionRun::run(task);
}

}  // namespace

Handles::Handles() {
  by_handle_.reserve(kUsualInFlight);
  by_name_.reserve(kUsualInFlight);
}

Status Handles::add(const TaskPtr& task) {
  Ending closed;
  {
    const MutexLock lock(mutex_);
    closed = closed_;
    if (task->completion == nullptr) by_handle_.emplace(task->handle, task);
    const Key key{task->request.set, task->request.name};
    try {
      if (closed == nullptr && !by_name_.emplace(key, task).second) {
        by_handle_.erase(task->handle);
        return name_taken(task->request.name);
      }
    } catch (...) {  // no memory: undo
      by_handle_.erase(task->handle);
      throw;
    }
    task->finished = closed != nullptr;
    if (!task->finished) ++unfinished_;
  }
  if (closed != nullptr) complete(task, closed);
  return Status::ok();
}

void Handles::add_done(const TaskPtr& task) {
  task->state.store(Task::kDone, std::memory_order_release);
  const MutexLock lock(mutex_);
  task->finished = true;
  by_handle_.emplace(task->handle, task);
  try {
    if (closed_ == nullptr) by_name_.emplace(Key{task->request.set, task->request.name}, task);
  } catch (...) {  // no memory
    by_handle_.erase(task->handle);
    throw;
  }
}

TaskPtr Handles::find(std::int64_t handle) const {
  const MutexLock lock(mutex_);
  const auto task = by_handle_.find(handle);
  return task == by_handle_.end() ? nullptr : task->second;
}

bool Handles::forget(std::int64_t handle) {
  TaskPtr task;  // destroyed after the unlock: it may own the task's memory
  const MutexLock lock(mutex_);
  const auto position = by_handle_.find(handle);
  if (position == by_handle_.end()) return false;
  task = std::move(position->second);
  by_handle_.erase(position);
  if (task->finished) erase_name(*task);
  return true;
}

TaskPtr Handles::in_flight(int set, std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto task = by_name_.find(Key{set, name});
  return task == by_name_.end() || task->second->finished ? nullptr : task->second;
}

TaskPtr Handles::in_flight(Kind kind) const {
  const MutexLock lock(mutex_);
  for (const auto& [key, task] : by_name_) {
    if (task->request.kind == kind && !task->finished) return task;
  }
  return nullptr;
}

std::vector<TaskPtr> Handles::all_in_flight() const {
  const MutexLock lock(mutex_);
  std::vector<TaskPtr> tasks;
  tasks.reserve(by_name_.size());
  for (const auto& [key, task] : by_name_) {
    if (!task->finished) tasks.push_back(task);
  }
  return tasks;
}

bool Handles::none_in_flight() const {
  const MutexLock lock(mutex_);
  return by_name_.empty();
}

bool Handles::may_begin_at_once(int set, std::string_view name) const {
  const MutexLock lock(mutex_);
  return unfinished_ == 0 && (by_name_.empty() || by_name_.count(Key{set, name}) == 0);
}

void Handles::finish(const TaskPtr& task, const Ending& ending) {
  {
    const MutexLock lock(mutex_);
    if (task->finished) return;  // closed before
    task->finished = true;
    --unfinished_;
    if (!task->keeps_name || by_handle_.count(task->handle) == 0) erase_name(*task);
  }
  complete(task, ending);
}

bool Handles::withdraw(const Task& task) {
  const MutexLock lock(mutex_);
  if (task.finished) return false;
  --unfinished_;
  erase_name(task);
  by_handle_.erase(task.handle);
  return true;
}

void Handles::free_name(const Task& task) {
  const MutexLock lock(mutex_);
  if (task.finished) erase_name(task);
}

void Handles::erase_name(const Task& task) {
  const auto found = by_name_.find(Key{task.request.set, task.request.name});
  if (found != by_name_.end() && found->second.get() == &task) by_name_.erase(found);
}

void Handles::close(const Ending& ending) noexcept {
  std::unordered_map<Key, TaskPtr, Hash> rest;
  {
    const MutexLock lock(mutex_);
    if (closed_ != nullptr) return;
    closed_ = ending;
    unfinished_ = 0;
    rest.swap(by_name_);
    for (auto& [key, task] : rest) {
      if (std::exchange(task->finished, true)) task = nullptr;
    }
  }
  for (const auto& [key, task] : rest) {
    if (task != nullptr) complete(task, ending);
  }
}

Status Handles::closed() const {
  const MutexLock lock(mutex_);
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
