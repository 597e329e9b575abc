// More descriptors than RLIMIT_NOFILE are waited for: poll() refuses that until the limit is
// raised. Which descriptors a forked child has.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
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

namespace {

struct Ends {
  Fd one, other;
  Ends() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    one.reset(ends[0]);
    other.reset(ends[1]);
  }
};

// The first byte that comes; 0: the other end is closed.
char heard(const Fd& end) {
  char byte = 0;
  return ::read(end.get(), &byte, 1) == 1 ? byte : '\0';
}

}  // namespace

TEST_CASE("descriptors: A24 a connection ends with its process though a forked child lives on") {
  Ends line, life;
  line.one.close_on_fork();
  Fd moved = std::move(line.one);  // is the same to a child
  const pid_t child = ::fork();
  if (child == 0) {
    life.one.reset();
    const bool taken = ::fcntl(moved.get(), F_GETFD) >= 0;  // nobody else gets the number
    const bool mute = ::send(moved.get(), "c", 1, MSG_NOSIGNAL) < 0;
    (void)!::write(life.other.get(), taken && mute ? "y" : "n", 1);
    (void)!heard(life.other);  // until its parent lets it go
    moved.reset();
    ::_exit(::fcntl(line.other.get(), F_GETFD) >= 0 ? 0
                                                    : 1);  // what is not said to be closed stays
  }
  life.other.reset();
  CHECK(heard(life.one) == 'y');
  moved.reset();  // as its parent's end would
  CHECK(heard(line.other) == '\0');
  life.one.reset();
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("descriptors: a number that is closed is no longer the parent's only") {
  Ends line, next;
  const int number = line.one.get();
  line.one.close_on_fork();
  line.one.reset();
  const Fd again(::dup(next.one.get()));
  REQUIRE(again.get() == number);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::send(again.get(), "c", 1, MSG_NOSIGNAL) == 1 ? 0 : 1);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
