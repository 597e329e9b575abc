// Runs n ranks as threads of this process, under a watchdog: a rank that waits forever ends the
// run with its name.
#pragma once

#include <doctest/doctest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/bootstrap/bootstrap.h"

namespace hvd::test {

// A bootstrap between threads. One Meeting for all, one ThreadBootstrap per rank.
class Meeting {
 public:
  explicit Meeting(int size) : parts_(static_cast<std::size_t>(size)) {}

  std::vector<std::string> allgather(int rank, const std::string& mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    parts_[static_cast<std::size_t>(rank)] = mine;
    const std::size_t round = round_;
    if (++arrived_ == parts_.size()) {
      result_ = parts_;
      arrived_ = 0;
      ++round_;
      complete_.notify_all();
    }
    complete_.wait(lock, [&] { return round_ != round; });
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable complete_;
  std::vector<std::string> parts_, result_;
  std::size_t arrived_ = 0, round_ = 0;
};

class ThreadBootstrap : public Bootstrap {
 public:
  ThreadBootstrap(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    return meeting_.allgather(rank_, mine);
  }

 private:
  Meeting& meeting_;
  int rank_;
};

class Watchdog {
 public:
  explicit Watchdog(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) running_.insert(rank);
  }
  void done(int rank, const std::string& failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_.erase(rank);
    if (!failure.empty()) failures_.push_back("rank " + std::to_string(rank) + ": " + failure);
    changed_.notify_one();
  }
  // Threads cannot be killed: after `seconds` the whole process ends, with status 3 and the names
  // of the waiting ranks.
  std::vector<std::string> wait(double seconds, const char* file, int line) {
    const Deadline deadline = Deadline::after_seconds(seconds);
    std::unique_lock<std::mutex> lock(mutex_);
    while (!running_.empty() && !deadline.expired()) changed_.wait_for(lock, deadline.remaining());
    if (running_.empty()) return failures_;
    std::string waiting;
    for (const int rank : running_) waiting += " " + std::to_string(rank);
    std::fprintf(stderr, "watchdog: %s:%d: after %.0f s these ranks still wait:%s\n", file, line,
                 seconds, waiting.c_str());
    for (const std::string& failure : failures_)
      std::fprintf(stderr, "watchdog: %s\n", failure.c_str());
    std::_Exit(3);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> running_;
  std::vector<std::string> failures_;
};

// body(rank) runs on a thread per rank. A REQUIRE that fails in it ends that rank only and fails
// the test.
inline void run_ranks(int ranks, const std::function<void(int)>& body, double seconds = 180,
                      const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  Watchdog watchdog(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string failure;
      try {
        body(rank);
      } catch (const std::exception& error) {
        failure = error.what();
      } catch (...) {
        failure = "ended by a failed REQUIRE";
      }
      watchdog.done(rank, failure);
    });
  }
  const std::vector<std::string> failures = watchdog.wait(seconds, file, line);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) FAIL_CHECK(failure);
}

}  // namespace hvd::test
