// More descriptors than RLIMIT_NOFILE are waited for: poll() refuses that until the limit is
// raised.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>

#include <vector>

#include "base/fd.h"

using namespace hvd;

TEST_CASE("descriptors: the soft limit is raised as far as it is needed, and no further") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit low = before;
  low.rlim_cur = 64;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  std::vector<pollfd> items(100, {-1, POLLIN, 0});
  CHECK(::poll(items.data(), items.size(), 0) < 0);
  allow_descriptors(items.size());
  CHECK(::poll(items.data(), items.size(), 0) == 0);
  allow_descriptors(10);
  rlimit after{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &after) == 0);
  CHECK(after.rlim_cur == 100);
  CHECK(after.rlim_max == before.rlim_max);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
