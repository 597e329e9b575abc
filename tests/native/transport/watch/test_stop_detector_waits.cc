// What the search for stopped processes costs those who wait: nothing, where there is nobody to
// look at.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/watch/stop_detector.h"

using namespace hvd;

TEST_CASE("stop detector: without peers on this host no wait wakes the watch") {
  StopDetector guard({});
  CHECK(guard.sleep_ms() < 0);
  for (int operation = 0; operation < 3; ++operation) {
    CHECK_FALSE(guard.attend(true));
    CHECK_FALSE(guard.attend(false));
  }
}

TEST_CASE("stop detector: the first wait wakes a watch that sleeps, the next ones do not") {
  StopDetector guard({});
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, ::getppid(), 0)));
  REQUIRE(process);
  guard.add(1, ::getppid(), process.get());
  CHECK(guard.sleep_ms() < 0);
  CHECK(guard.attend(true));
  CHECK(guard.sleep_ms() > 0);
  CHECK_FALSE(guard.attend(false));
  CHECK_FALSE(guard.attend(true));
}
