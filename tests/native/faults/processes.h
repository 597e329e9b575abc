// Ranks as processes that may die: forked, joined by an engine over real transports, told apart by
// what they report.
//   report   what one rank says once: when its wait ended, with which Status
//   failing  the rank that the test makes fail
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "engine/engine.h"
#include "transport/bootstrap/bootstrap.h"

namespace hvd::test {

struct Report {
  std::int64_t at_ns = 0;  // CLOCK_MONOTONIC, the same for all processes
  int code = 0;
  int rank = -1;
  char message[512] = {};

  static Report of(const Status& status);
  Code status_code() const { return static_cast<Code>(code); }
};

// What a rank's process has towards the test.
class Line {
 public:
  Line(Fd out, Fd in) : out_(std::move(out)), in_(std::move(in)) {}
  void started() const;  // "I am in the middle of it"
  void say(const Report& report) const;
  void await_go() const;  // until the test calls go()
  const Fd& in() const { return in_; }

 private:
  Fd out_, in_;
};

using Body = std::function<void(int rank, Bootstrap& bootstrap, Line& line)>;

class Processes {
 public:
  // Forks; each child runs body and ends with status 0. The parent must have no threads.
  Processes(int ranks, const Body& body);
  ~Processes();  // kills what is left
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  // False: not all of these said so within the seconds.
  bool all_started(double seconds);
  // False at once where the rank is gone, or reports without having said so.
  bool has_started(int rank, double seconds) { return read_tag(rank, seconds) == 's'; }
  void go();
  void signal(int rank, int number) const { ::kill(pid(rank), number); }
  // Nothing: silent until the time was over, or gone without a word.
  std::optional<Report> report(int rank, double seconds);
  // The wait status of every rank; -1: still running after the seconds (it is killed then).
  std::vector<int> wait_all(double seconds);

 private:
  std::optional<char> read_tag(int rank, double seconds);

  std::vector<pid_t> pids_;
  std::vector<Fd> from_, to_;
};

}  // namespace hvd::test
