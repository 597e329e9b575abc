// Failpoints: what arms them, at which passage they act, and how.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <stdexcept>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "base/fd.h"
#include "ranks.h"

using namespace hvd;

namespace {

struct Disarm {
  ~Disarm() { arm_failpoints(""); }
};

int status_of(const std::function<void()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(20);
    child();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, WUNTRACED) == pid);
  if (WIFSTOPPED(status)) {
    ::kill(pid, SIGKILL);
    int rest = 0;
    REQUIRE(::waitpid(pid, &rest, 0) == pid);
  }
  return status;
}

}  // namespace

TEST_CASE("failpoint: unarmed ones pass, armed ones act at their passage only") {
  const Disarm disarm;
  CHECK_FALSE(failpoint("base.test"));
  arm_failpoints("base.test:fail@3;base.always:fail");
  for (int passage = 1; passage <= 5; ++passage) CHECK(failpoint("base.test") == (passage == 3));
  CHECK(failpoint_passages("base.test") == 5);
  CHECK(failpoint_passages("base.other") == 0);
  CHECK(failpoint("base.always"));
  CHECK(failpoint("base.always"));
  CHECK_FALSE(failpoint("base.other"));
  arm_failpoints("");
  CHECK_FALSE(failpoint("base.always"));
}

TEST_CASE("failpoint: throw and delay") {
  const Disarm disarm;
  arm_failpoints("base.throws:throw@1;base.waits:delay=30@1");
  CHECK_THROWS_AS(failpoint("base.throws"), std::runtime_error);
  const auto start = Clock::now();
  CHECK_FALSE(failpoint("base.waits"));
  CHECK(Clock::now() - start >= std::chrono::milliseconds(30));
  CHECK_FALSE(failpoint("base.waits"));
}

TEST_CASE("failpoint: invalid entries are skipped, the rest is armed") {
  const Disarm disarm;
  arm_failpoints("base.a:explode;base.b;:fail;base.c:fail@0;base.d:delay=x;;base.e:fail");
  for (const char* const name : {"base.a", "base.b", "base.c", "base.d"})
    CHECK_FALSE(failpoint(name));
  CHECK(failpoint("base.e"));
}

TEST_CASE("failpoint: kill and stop are the real signals") {
  const int killed = status_of([] {
    arm_failpoints("base.test:kill");
    failpoint("base.test");
  });
  CHECK(WIFSIGNALED(killed));
  CHECK(WTERMSIG(killed) == SIGKILL);
  const int stopped = status_of([] {
    arm_failpoints("base.test:stop");
    failpoint("base.test");
  });
  CHECK(WIFSTOPPED(stopped));
  CHECK(WSTOPSIG(stopped) == SIGSTOP);
}

TEST_CASE("failpoint: several threads pass, and exactly one is the n-th") {
  const Disarm disarm;
  arm_failpoints("base.test:fail@500");
  std::atomic<int> hits{0};
  test::run_ranks(4, [&](int) {
    for (int i = 0; i < 250; ++i)
      if (failpoint("base.test")) ++hits;
  });
  CHECK(hits == 1);
}

// Started by the next one in a process of its own.
TEST_CASE("failpoint: child armed from its environment" * doctest::skip()) {
  ::_exit(failpoint("base.env") ? 42 : 43);
}

TEST_CASE("failpoint: HVD_FAILPOINT arms a process from its start") {
  const int status = status_of([] {
    ::setenv("HVD_FAILPOINT", "base.env:fail@1", 1);  // NOLINT(concurrency-mt-unsafe)
    ::execl("/proc/self/exe", "tests", "--no-skip",
            "-tc=failpoint: child armed from its environment", nullptr);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
}
