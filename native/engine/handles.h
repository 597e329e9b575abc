// Words.
//   task      one request of this rank with its memory, from the call that made it until its handle
//   is waited for handle    the number under which the user waits for a task; counted from 0 by
//   every call, also by calls that fail
// A task is in flight (its name is taken) until it is finished; it is known by its handle until
// wait() has given its outcome.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/futex.h"
#include "base/status.h"
#include "collective/plan.h"
#include "engine/buffer.h"
#include "engine/request.h"

namespace hvd {

struct Task {
  std::int64_t handle = 0;
  std::int64_t enqueued_ns = 0;
  Request request;
  std::vector<Operand> operands;  // one per tensor of the request, in elements

  // Written before the state becomes kDone, read after it.
  Status status;
  std::shared_ptr<Buffer> output;
  Word state{kRunning};

  static constexpr std::uint32_t kRunning = 0;
  static constexpr std::uint32_t kWaitedFor = 1;  // somebody sleeps on `state`
  static constexpr std::uint32_t kDone = 2;
  bool done() const { return state.load(std::memory_order_acquire) == kDone; }
};

class Handles {
 public:
  std::int64_t next() { return counter_.fetch_add(1); }

  // Refuses a name that is in flight. After close() the task is taken and finished at once with the
  // closing status.
  Status add(const std::shared_ptr<Task>& task);

  // Null for a handle that was never given out or is already waited for.
  std::shared_ptr<Task> find(std::int64_t handle) const;
  void forget(std::int64_t handle);

  // By name; null when this rank has nothing of that name in flight.
  std::shared_ptr<Task> in_flight(const std::string& name) const;
  std::vector<std::shared_ptr<Task>> all_in_flight() const;

  void finish(const std::shared_ptr<Task>& task, Status status);
  // Finishes everything in flight, and everything that comes later, with `status`. The first
  // closing wins.
  void close(const Status& status);
  Status closed() const;  // ok: open

 private:
  std::atomic<std::int64_t> counter_{0};
  mutable std::mutex mutex_;
  Status closed_;
  std::unordered_map<std::int64_t, std::shared_ptr<Task>> by_handle_;
  std::unordered_map<std::string, std::shared_ptr<Task>> by_name_;
};

// True when the task is finished; sleeps at most `longest`.
bool wait_done(Task& task, std::chrono::nanoseconds longest);

}  // namespace hvd
