// What a test case that hangs leaves behind: its name, and where each thread is
// (tests/native/watchdog.cc).
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/fd.h"

namespace {

// Where a stack distinguishes it.
[[gnu::noinline]] void wait_in_vain() {
  for (;;) ::pause();
}

}  // namespace

// Started by the next one in a process of its own.
TEST_CASE("watchdog: child that hangs" * doctest::skip()) {
  std::thread other(wait_in_vain);
  other.join();
}

#ifndef __SANITIZE_THREAD__  // which delays signals
TEST_CASE("watchdog: a test case that takes too long is named, with the stacks of its threads") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const hvd::Fd in(ends[0]);
  hvd::Fd out(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out.get(), STDERR_FILENO);
    ::setenv("HVDTEST_LIMIT_S", "1", 1);  // NOLINT(concurrency-mt-unsafe)
    ::execl("/proc/self/exe", "tests", "--no-skip", "-tc=watchdog: child that hangs", nullptr);
    ::_exit(1);
  }
  out.reset();
  std::string said;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = ::read(in.get(), part.data(), part.size())) > 0;)
    said.append(part.data(), static_cast<std::size_t>(got));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(said.find("took too long: watchdog: child that hangs (") != std::string::npos);
  CHECK_MESSAGE(said.find("thread " + std::to_string(child) + ":") != std::string::npos, said);
  CHECK(said.find("thread ", said.find("thread ") + 1) != std::string::npos);
}
#endif
