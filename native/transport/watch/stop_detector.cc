#include "transport/watch/stop_detector.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/log.h"

namespace hvd {
namespace {

constexpr int kTickMs = 100;
// A gap between two checks: this process, or the whole machine, was suspended, too.
constexpr std::chrono::milliseconds kOwnGap{500};

}  // namespace

void StopDetector::add(int rank, int pid, int pidfd) {
  processes_.push_back({rank, pid, pidfd, Fd(), std::nullopt, false});
}

void StopDetector::forget(int rank) {
  processes_.erase(std::remove_if(processes_.begin(), processes_.end(),
                                  [&](const Process& process) { return process.rank == rank; }),
                   processes_.end());
}

// The waiter increments the count, then checks whether the detector sleeps. The detector announces
// its sleep, then checks the count: one of the two sees the other.
bool StopDetector::attend(bool waiting) {
  const std::uint32_t now = waits_.load(std::memory_order_relaxed);
  if ((now % 2 == 1) == waiting) return false;
  waits_.store(now + 1, std::memory_order_seq_cst);
  return waiting && asleep_.load(std::memory_order_seq_cst);
}

int StopDetector::sleep_ms() {
  if (processes_.empty()) {  // nothing to check: no wait is worth a wake-up
    asleep_.store(false, std::memory_order_relaxed);
    return -1;
  }
  asleep_.store(true, std::memory_order_seq_cst);
  const std::uint32_t now = waits_.load(std::memory_order_seq_cst);
  // Occasional waits are not worth a wake-up each: check once more before sleeping.
  if (now % 2 == 0 && now == seen_) return -1;
  asleep_.store(false, std::memory_order_relaxed);
  return kTickMs;
}

// Only a wait that has lasted since the last check is worth checking the peers.
bool StopDetector::waited_all_along() {
  const std::uint32_t now = waits_.load(std::memory_order_acquire);
  const bool same = now % 2 == 1 && now == seen_;
  seen_ = now;
  return same;
}

std::optional<StopDetector::Stopped> StopDetector::check(Clock::time_point now) {
  if (now - looked_ < std::chrono::milliseconds(kTickMs / 2)) return std::nullopt;
  const bool gap = now - looked_ > kOwnGap;
  looked_ = now;
  const bool waited = waited_all_along();
  for (Process& process : processes_) {
    if (!waited || gap || !stopped(process)) {
      process.since.reset();
      process.warned = false;
      continue;
    }
    if (!process.since) process.since = now;
    const double seconds = std::chrono::duration<double>(now - *process.since).count();
    const std::string who =
        "rank " + std::to_string(process.rank) + " (process " + std::to_string(process.pid) + ")";
    if (seconds >= rules_.warning_s && !process.warned) {
      process.warned = true;
      log(Level::kWarning, "transport/failure_detector",
          who + " is stopped (SIGSTOP or a debugger); other ranks wait for it");
    }
    if (rules_.abort_s > 0 && seconds >= rules_.abort_s) return Stopped{process.rank, process.pid};
  }
  return std::nullopt;
}

// If the process is alive after its state was opened by number, the number was not reused.
void StopDetector::open_state(Process& process) {
  process.stat.reset(
      ::open(("/proc/" + std::to_string(process.pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  pollfd item{process.pidfd, POLLIN, 0};
  if (::poll(&item, 1, 0) != 0) process.stat.reset();
}

bool StopDetector::stopped(Process& process) {
  if (!process.stat) open_state(process);
  std::array<char, 512> text{};
  const ssize_t got = ::pread(process.stat.get(), text.data(), text.size(), 0);
  if (got <= 0) return false;
  // "pid (name) S ..."; the name may contain any character.
  const std::string_view line(text.data(), static_cast<std::size_t>(got));
  const std::size_t end = line.rfind(')');
  if (end == std::string_view::npos || end + 2 >= line.size()) return false;
  return line[end + 2] == 'T' || line[end + 2] == 't';
}

}  // namespace hvd
