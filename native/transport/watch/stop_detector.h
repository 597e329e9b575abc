// Stop detector: finds processes of this host that are stopped (SIGSTOP, a debugger) while a thread
// waits for them. Ranks that are merely slow or busy do not count.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"

namespace hvd {

struct StopRules {
  double warning_s = 0.5;
  double abort_s = 5;  // 0: never
};

class StopDetector {
 public:
  explicit StopDetector(const StopRules& rules) : rules_(rules) {}

  void add(int rank, int pid, int pidfd);  // before the first check
  void forget(int rank);                   // it has left

  // Any thread. True if the checking thread sleeps and must be woken.
  bool attend(bool waiting);

  // Time until the next check, for which the checking thread may sleep; negative: no thread waits.
  int sleep_ms();
  struct Stopped {
    int rank;
    int pid;
  };
  // Log a warning if it is due; return a rank that has been stopped too long. The time is an
  // argument.
  std::optional<Stopped> check(Clock::time_point now);

 private:
  struct Process {
    int rank;
    int pid;
    int pidfd;
    Fd stat;  // of this process, even if its number is reused
    std::optional<Clock::time_point> since;
    bool warned;
  };
  bool waited_all_along();
  static void open_state(Process& process);
  static bool stopped(Process& process);

  StopRules rules_;
  std::vector<Process> processes_;
  // Even: no thread waits. Counts begins and ends, so that two waits can be distinguished.
  std::atomic<std::uint32_t> waits_{0};
  std::atomic<bool> asleep_{true};
  std::uint32_t seen_ = 0;
  Clock::time_point looked_;
};

}  // namespace hvd
