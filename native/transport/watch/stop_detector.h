// Looks for processes of this host that are stopped (SIGSTOP, a debugger) while somebody waits for
// them. A rank that is merely slow or busy is none of its business.
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

  void add(int rank, int pid, int pidfd);  // before the first look
  void forget(int rank);                   // it is gone

  // Any thread. True when whoever looks sleeps and must be woken.
  bool attend(bool waiting);

  // How long until the next look; negative: nobody waits. The looker is about to sleep so long.
  int sleep_ms();
  struct Stopped {
    int rank;
    int pid;
  };
  // Logs a warning when it is time for one; a rank that has been stopped too long. It knows no
  // other time than the one it is given.
  std::optional<Stopped> check(Clock::time_point now);

 private:
  struct Process {
    int rank;
    int pid;
    int pidfd;
    Fd stat;  // of this very process: cannot turn into another that gets its number
    std::optional<Clock::time_point> since;
    bool warned;
  };
  bool waited_all_along();
  static void open_state(Process& process);
  static bool stopped(Process& process);

  StopRules rules_;
  std::vector<Process> processes_;
  // Even: nobody waits. Counts beginnings and ends, so that a wait can be told from the next one.
  std::atomic<std::uint32_t> waits_{0};
  std::atomic<bool> asleep_{true};
  std::uint32_t seen_ = 0;
  Clock::time_point looked_;
};

}  // namespace hvd
