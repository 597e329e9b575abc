// Ranks as real processes, for what threads cannot do: die, be stopped, run into a limit of their
// own.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "transport/bootstrap/tcp_bootstrap.h"
#include "transport/mesh/mesh.h"
#include "transport/socket/socket.h"

namespace hvd::test {

// Sanitizers need terabytes of address space, and descriptors to look at memory: no test of such
// limits under them.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// What is seen at once and not by a timer, of which the shortest lasts twice as long.
constexpr double kAtOnceMs = 250, kNotAtOnceMs = 1e9;

// The report of a process to the test. One write below 4,096 bytes, so reports do not mix.
struct Report {
  std::int64_t at_ns = 0;
  int rank = -1;
  int code = 0;
  int failing = -1;
  std::array<char, 512> text{};

  std::string message() const { return text.data(); }
  bool died(int who) const { return code == static_cast<int>(Code::kRankDied) && failing == who; }
};

class Processes {
 public:
  using Body = std::function<Status(Mesh&)>;

  // Every process connects, reports it, runs the body and reports its result; then it leaves.
  Processes(int size, const std::function<MeshOptions(int rank)>& options, const Body& body) {
    std::array<int, 2> ends{}, logs{};
    REQUIRE(::pipe(ends.data()) == 0);
    REQUIRE(::pipe(logs.data()) == 0);
    reports_.reset(ends[0]);
    log_.reset(logs[0]);
    Fd write(ends[1]), log_write(logs[1]);
    Result<Fd> listener = listen_tcp("127.0.0.1", 0, 1);
    REQUIRE(listener.is_ok());
    const std::uint16_t port = bound_port(listener.value());
    listener.value().reset();
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::alarm(60);
        ::dup2(log_write.get(), STDERR_FILENO);
        be_rank(rank, size, port, options(rank), body, write.get());
      }
      pids_.push_back(pid);
    }
    for (int i = 0; i < size; ++i) REQUIRE(next().code == 0);  // connected
  }
  ~Processes() {
    for (const pid_t pid : pids_)
      if (pid > 0) end(pid);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void signal(int rank, int number) { REQUIRE(::kill(at(rank), number) == 0); }
  Report next() {
    pollfd item{reports_.get(), POLLIN, 0};
    REQUIRE_MESSAGE(::poll(&item, 1, 40'000) == 1, "a process says nothing");
    Report report;
    REQUIRE(::read(reports_.get(), &report, sizeof report) == sizeof report);
    return report;
  }
  // The process has exited on its own, with status 0.
  void expect_good_end(int rank) {
    int status = 0;
    REQUIRE(::waitpid(at(rank), &status, 0) == at(rank));
    at(rank) = 0;
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  // The process has stopped itself.
  void expect_stopped(int rank) {
    int status = 0;
    REQUIRE(::waitpid(at(rank), &status, WUNTRACED) == at(rank));
    REQUIRE(WIFSTOPPED(status));
  }
  // Until one of them has logged this.
  void expect_logged(const std::string& text) {
    const Deadline deadline = Deadline::after_seconds(30);
    std::string all;
    while (all.find(text) == std::string::npos) {
      std::array<char, 4096> part{};
      pollfd item{log_.get(), POLLIN, 0};
      REQUIRE_MESSAGE(::poll(&item, 1, deadline.remaining_ms(30'000)) == 1, "not logged: " << text);
      const ssize_t got = ::read(log_.get(), part.data(), part.size());
      REQUIRE(got > 0);
      all.append(part.data(), static_cast<std::size_t>(got));
    }
  }

 private:
  [[noreturn]] static void be_rank(int rank, int size, std::uint16_t port,
                                   const MeshOptions& options, const Body& body, int pipe) {
    auto bootstrap = TcpBootstrap::connect(rank, size, "127.0.0.1", port, 30);
    if (!bootstrap.is_ok()) ::_exit(10);
    auto mesh = connect_mesh(rank, size, *bootstrap.value(), options);
    tell(pipe, rank, mesh.status());
    if (!mesh.is_ok()) ::_exit(11);
    const Status status = body(*mesh.value());
    tell(pipe, rank, status);
    mesh.value()->leave();
    mesh.value().reset();
    ::_exit(0);
  }
  static void tell(int pipe, int rank, const Status& status) {
    Report report{now_ns(), rank, static_cast<int>(status.code), status.rank, {}};
    std::copy_n(status.message.begin(), std::min(status.message.size(), report.text.size() - 1),
                report.text.begin());
    if (::write(pipe, &report, sizeof report) != sizeof report) ::_exit(12);
  }
  static void end(pid_t pid) {
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
  }
  pid_t& at(int rank) { return pids_[static_cast<std::size_t>(rank)]; }

  Fd reports_, log_;
  std::vector<pid_t> pids_;
};

}  // namespace hvd::test
