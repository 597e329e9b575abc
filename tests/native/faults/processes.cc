#include "faults/processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/deadline.h"
#include "transport/socket/socket.h"

namespace hvd::test {
namespace {

constexpr double kBootstrapSeconds = 30;

// Frames over socket pairs that the parent made: rank 0 in the middle.
class PairBootstrap : public Bootstrap {
 public:
  PairBootstrap(int rank, std::vector<Fd> pairs) : rank_(rank), pairs_(std::move(pairs)) {}

  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    const Deadline deadline = Deadline::after_seconds(kBootstrapSeconds);
    return rank_ == 0 ? gather(mine, deadline) : ask(mine, deadline);
  }

 private:
  Result<std::vector<std::string>> gather(const std::string& mine, Deadline deadline) {
    std::vector<std::string> all{mine};
    for (std::size_t peer = 1; peer < pairs_.size(); ++peer) {
      Result<std::string> its = receive_frame(pairs_[peer], deadline);
      if (!its) return its.status();
      all.push_back(its.take());
    }
    for (std::size_t peer = 1; peer < pairs_.size(); ++peer) {
      for (const std::string& one : all) {
        if (Status status = send_frame(pairs_[peer], one, deadline); !status) return status;
      }
    }
    return all;
  }

  Result<std::vector<std::string>> ask(const std::string& mine, Deadline deadline) {
    if (Status status = send_frame(pairs_.front(), mine, deadline); !status) return status;
    std::vector<std::string> all;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      Result<std::string> its = receive_frame(pairs_.front(), deadline);
      if (!its) return its.status();
      all.push_back(its.take());
    }
    return all;
  }

 public:
  std::size_t size_ = 0;

 private:
  int rank_;
  std::vector<Fd> pairs_;  // rank 0: one per rank, its own empty; the others: rank 0's alone
};

void nonblocking_pair(Fd& one, Fd& other) {
  int fds[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  one.reset(fds[0]);
  other.reset(fds[1]);
}

[[noreturn]] void live(int rank, PairBootstrap& bootstrap, Line& line, const Body& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGSEGV, SIGILL, SIGABRT}) std::signal(number, SIG_DFL);
  try {
    body(rank, bootstrap, line);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

}  // namespace

Report Report::of(const Status& status) {
  Report report;
  report.at_ns = now_ns();
  report.code = static_cast<int>(status.code);
  report.rank = status.rank;
  std::snprintf(report.message, sizeof report.message, "%s", status.message.c_str());
  return report;
}

void Line::started() const {
  const char tag = 's';
  (void)!::write(out_.get(), &tag, 1);
}

void Line::say(const Report& report) const {
  char bytes[sizeof report + 1] = {'r'};
  std::memcpy(bytes + 1, &report, sizeof report);
  (void)!::write(out_.get(), bytes, sizeof bytes);
}

void Line::await_go() const {
  char byte = 0;
  while (::read(in_.get(), &byte, 1) < 0 && errno == EINTR) {
  }
}

Processes::Processes(int ranks, const Body& body) {
  std::vector<Fd> hub(static_cast<std::size_t>(ranks)), spokes(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 1; rank < hub.size(); ++rank) nonblocking_pair(hub[rank], spokes[rank]);
  std::fflush(nullptr);
  for (int rank = 0; rank < ranks; ++rank) {
    int out[2] = {-1, -1}, in[2] = {-1, -1};
    if (::pipe(out) != 0 || ::pipe(in) != 0) std::abort();
    Fd read_end(out[0]), write_end(out[1]), go_end(in[1]), wait_end(in[0]);
    const pid_t pid = ::fork();
    if (pid == 0) {
      from_.clear();
      to_.clear();
      go_end.reset();
      read_end.reset();
      std::vector<Fd> mine;
      if (rank == 0) {
        mine = std::move(hub);
        spokes.clear();
      } else {
        mine.push_back(std::move(spokes[static_cast<std::size_t>(rank)]));
        spokes.clear();
        hub.clear();
      }
      PairBootstrap bootstrap(rank, std::move(mine));
      bootstrap.size_ = static_cast<std::size_t>(ranks);
      Line line(std::move(write_end), std::move(wait_end));
      live(rank, bootstrap, line, body);
    }
    pids_.push_back(pid);
    from_.push_back(std::move(read_end));
    to_.push_back(std::move(go_end));
  }
}

Processes::~Processes() { wait_all(0); }

std::optional<char> Processes::read_tag(int rank, double seconds) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  const Fd& from = from_[static_cast<std::size_t>(rank)];
  do {
    pollfd item{from.get(), POLLIN, 0};
    if (::poll(&item, 1, deadline.remaining_ms()) <= 0) continue;
    char tag = 0;
    if (::read(from.get(), &tag, 1) == 1) return tag;
    return std::nullopt;
  } while (!deadline.expired());
  return std::nullopt;
}

bool Processes::all_started(double seconds) {
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    if (read_tag(static_cast<int>(rank), seconds) != 's') return false;
  }
  return true;
}

void Processes::go() {
  for (const Fd& fd : to_) (void)!::write(fd.get(), "g", 1);
}

std::optional<Report> Processes::report(int rank, double seconds) {
  std::optional<char> tag = read_tag(rank, seconds);
  if (tag == 's') tag = read_tag(rank, seconds);
  Report report;
  if (tag != 'r') return std::nullopt;
  if (::read(from_[static_cast<std::size_t>(rank)].get(), &report, sizeof report) !=
      static_cast<ssize_t>(sizeof report)) {
    return std::nullopt;
  }
  return report;
}

std::vector<int> Processes::wait_all(double seconds) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  std::vector<int> ends(pids_.size(), -1);
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    if (pids_[rank] <= 0) continue;
    // A pipe's hang-up says that the process is gone: no polling for its status.
    pollfd item{from_[rank].get(), 0, 0};
    while ((item.revents & POLLHUP) == 0 && !deadline.expired()) {
      ::poll(&item, 1, deadline.remaining_ms());
    }
    if ((item.revents & POLLHUP) == 0) ::kill(pids_[rank], SIGKILL);
    int status = -1;
    ::waitpid(pids_[rank], &status, 0);
    if ((item.revents & POLLHUP) != 0) ends[rank] = status;
    pids_[rank] = -1;
  }
  return ends;
}

}  // namespace hvd::test
