// The TCP bootstrap: exchange, missing ranks, wrong ranks, strangers.
#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "ranks.h"
#include "transport/bootstrap/tcp_bootstrap.h"
#include "transport/socket/socket.h"

using namespace hvd;

namespace {

const std::string kHost = "127.0.0.1";

// A port that was free a moment ago.
std::uint16_t free_port() {
  Result<Fd> listener = listen_tcp(kHost, 0, 1);
  REQUIRE(listener.is_ok());
  return bound_port(listener.value());
}

constexpr double kAlways = 600;  // longer than any test may take

bool mentions(const Status& status, const std::string& text) {
  return status.message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "bootstrap: every rank gets the bytes of all, as often as it likes, also on the same port "
    "again") {
  for (const int size : {1, 2, 3, 4}) {
    const std::uint16_t port = free_port();
    for (int start = 0; start < 2; ++start) {
      test::run_ranks(size, [&](int rank) {
        auto bootstrap = TcpBootstrap::connect(rank, size, kHost, port, 20);
        REQUIRE_MESSAGE(bootstrap.is_ok(), bootstrap.status().message);
        for (int round = 0; round < 5; ++round) {
          const auto mine = [round](int who) {
            return std::string(static_cast<std::size_t>(who) * 70'000, 'a') + char(who) +
                   std::to_string(round);
          };
          const auto all = bootstrap.value()->allgather(mine(rank));
          REQUIRE_MESSAGE(all.is_ok(), all.status().message);
          REQUIRE(all.value().size() == static_cast<std::size_t>(size));
          for (int who = 0; who < size; ++who)
            CHECK(all.value()[static_cast<std::size_t>(who)] == mine(who));
        }
      });
    }
  }
}

TEST_CASE("bootstrap: a rank that is known is not waited for when its process has ended") {
  const std::uint16_t port = free_port();
  const pid_t known = ::fork();
  if (known == 0) {
    ::pause();
    ::_exit(0);
  }
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, known, 0)));
  REQUIRE(pidfd);
  test::run_ranks(3, [&](int rank) {  // for less time than the ranks have
    if (rank == 2) {
      ::kill(known, SIGKILL);
      return;
    }
    const auto bootstrap =
        TcpBootstrap::connect(rank, 3, kHost, port, kAlways, "", {{2, pidfd.get()}});
    REQUIRE_FALSE(bootstrap.is_ok());
    CHECK(bootstrap.status().code == Code::kRankDied);
    CHECK(bootstrap.status().rank == 2);
    CHECK(mentions(bootstrap.status(), "rank 2 exited"));
  });
  ::waitpid(known, nullptr, 0);
}

TEST_CASE("bootstrap: a lone waiter returns on the first message") {
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    const Fd news(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    std::thread later([&] { REQUIRE(::eventfd_write(news.get(), 1) == 0); });
    const Status status =
        TcpBootstrap::connect(rank, 2, kHost, free_port(), kAlways, "", {{rank, news.get()}})
            .status();
    later.join();
    CHECK(status.code == Code::kRankDied);
  }
}

TEST_CASE("bootstrap: messages right after a clock check are reported correctly") {
  constexpr const char* kSeen = "bootstrap.deadline_seen";
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    arm_failpoints((std::string(kSeen) + ":delay=50").c_str());
    const long before = failpoint_passages(kSeen);
    const Fd news(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    std::thread later([&] {
      while (failpoint_passages(kSeen) == before) std::this_thread::yield();
      REQUIRE(::eventfd_write(news.get(), 1) == 0);
    });
    const Status status =
        TcpBootstrap::connect(rank, 2, kHost, free_port(), kAlways, "", {{rank, news.get()}})
            .status();
    later.join();
    arm_failpoints("");
    CHECK(status.code == Code::kRankDied);
  }
}

TEST_CASE("bootstrap: a rank that connects and leaves is named, without waiting") {
  const std::uint16_t port = free_port();
  std::atomic<int> ended{0};
  test::run_ranks(3, [&](int rank) {  // of four
    if (rank == 2) {
      while (ended < 2) static_cast<void>(TcpBootstrap::connect(2, 4, kHost, port, 0.2));
      return;
    }
    const Status status = TcpBootstrap::connect(rank, 4, kHost, port, kAlways).status();
    ++ended;
    CHECK_MESSAGE(mentions(status, "rank 2 dropped out of the start"), status.message);
    CHECK(status.rank == 2);
  });
}

TEST_CASE("bootstrap: missing ranks are named on the others") {
  const std::uint16_t port = free_port();
  test::run_ranks(2, [&](int rank) {
    Status status;
    // Rank 1 comes as soon as somebody listens; rank 0 gives it more time where that is not enough.
    double patience = rank == 0 ? 0.3 : kAlways;
    do {
      status = TcpBootstrap::connect(rank, 4, kHost, port, patience).status();
      patience *= 2;
    } while (rank == 0 && mentions(status, "rank 1, 2, 3 did not come"));
    CHECK(status.code == Code::kTimeout);
    CHECK(mentions(status, "rank 2, 3 did not come"));
  });
}

TEST_CASE("bootstrap: a missing rank 0 is named with the address it was awaited at") {
  const std::uint16_t port = free_port();
  const auto bootstrap = TcpBootstrap::connect(1, 2, kHost, port, 0.2);
  REQUIRE_FALSE(bootstrap.is_ok());
  CHECK(bootstrap.status().code == Code::kTimeout);
  CHECK(mentions(bootstrap.status(), "rank 0"));
  CHECK(mentions(bootstrap.status(), kHost + ":" + std::to_string(port)));
}

TEST_CASE("bootstrap: different sizes are refused on both sides") {
  const std::uint16_t port = free_port();
  test::run_ranks(2, [&](int rank) {
    const auto bootstrap = TcpBootstrap::connect(rank, rank == 0 ? 2 : 3, kHost, port, 20);
    REQUIRE_FALSE(bootstrap.is_ok());
    CHECK(bootstrap.status().code == Code::kInvalidArgument);
    CHECK(mentions(bootstrap.status(), "rank 1 was started with size 3, rank 0 with size 2"));
  });
}

TEST_CASE("bootstrap: two processes with the same rank are refused") {
  const std::uint16_t port = free_port();
  test::run_ranks(3, [&](int thread) {
    const auto bootstrap = TcpBootstrap::connect(thread == 0 ? 0 : 1, 3, kHost, port, 20);
    REQUIRE_FALSE(bootstrap.is_ok());
    CHECK(mentions(bootstrap.status(), "two processes call themselves rank 1"));
  });
}

TEST_CASE("bootstrap: strangers do not disturb, and a rank that leaves is named") {
  const std::uint16_t port = free_port();
  test::run_ranks(4, [&](int thread) {
    if (thread == 3) {
      for (int i = 0; i < 5; ++i) {
        Result<Fd> stranger = Status::make(Code::kUnavailable, "", "");
        for (int attempt = 0; attempt < 100 && !stranger.is_ok(); ++attempt)
          stranger = connect_tcp(kHost, port, Deadline::after_seconds(1));
        if (!stranger.is_ok()) break;  // the ranks have met already
        if (!send_all(stranger.value(), "GET / HTTP/1.1\r\n\r\n", Deadline::after_seconds(1)))
          continue;
      }
      return;
    }
    auto bootstrap = TcpBootstrap::connect(thread, 3, kHost, port, 20);
    REQUIRE_MESSAGE(bootstrap.is_ok(), bootstrap.status().message);
    REQUIRE(bootstrap.value()->allgather("here").is_ok());
    if (thread == 2) return;
    const auto second = bootstrap.value()->allgather("again");
    REQUIRE_FALSE(second.is_ok());
    CHECK(mentions(second.status(), "rank 2 dropped out"));
    CHECK(second.status().rank == 2);
  });
}

TEST_CASE(
    "bootstrap: a rank 0 that goes away is named, whether it is seen in sending or receiving") {
  const std::uint16_t port = free_port();
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    auto bootstrap = TcpBootstrap::connect(rank, 2, kHost, port, 20);
    REQUIRE_MESSAGE(bootstrap.is_ok(), bootstrap.status().message);
    if (rank == 0) {  // with something unread: a reset, behind which nothing can be sent
      meeting.allgather(rank, "");
      return;
    }
    const std::string large(std::size_t{8} << 20U, 'x');  // more than the sockets hold
    std::thread late([&] { meeting.allgather(rank, ""); });
    for (int attempt = 0; attempt < 3; ++attempt) {
      const Status status = bootstrap.value()->allgather(large).status();
      CHECK(status.rank == 0);
      CHECK_MESSAGE(mentions(status, "rank 0 dropped out of the start"), status.message);
    }
    late.join();
  });
}

TEST_CASE(
    "bootstrap: another secret is refused at once, and rank 0 reports why a rank is missing") {
  const std::uint16_t port = free_port();
  std::atomic<bool> over{false};
  std::atomic<int> refusals{0};
  test::run_ranks(3, [&](int rank) {
    if (rank == 2) {
      while (!over.load()) {
        const Status status = TcpBootstrap::connect(2, 3, kHost, port, 2, "wrong").status();
        if (status.code == Code::kTimeout) continue;  // rank 0 was not there
        CHECK(status.code == Code::kInvalidArgument);
        CHECK(mentions(status, "do not have the same secret"));
        CHECK(mentions(status, "HVD_SECRET_KEY"));
        ++refusals;
      }
      return;
    }
    // The others come as soon as somebody listens; where that is too late, for one or the other,
    // rank 0 gives them more time.
    double patience = rank == 0 ? 1 : kAlways;
    Status status;
    do {
      status = TcpBootstrap::connect(rank, 3, kHost, port, patience, "right").status();
      patience *= 2;
    } while (rank == 0 &&
             (mentions(status, "rank 1, 2 did not come") || !mentions(status, "HVD_SECRET_KEY")));
    if (rank == 0) over = true;
    CHECK(mentions(status, "rank 2 did not come"));
    CHECK(mentions(status, "HVD_SECRET_KEY"));
  });
  CHECK(refusals > 0);
}

TEST_CASE("bootstrap: an address that others can reach needs a secret") {
  const auto bare = TcpBootstrap::connect(0, 2, "0.0.0.0", free_port(), 0.1);
  REQUIRE_FALSE(bare.is_ok());
  CHECK(bare.status().code == Code::kInvalidArgument);
  CHECK(mentions(bare.status(), "HVD_SECRET_KEY"));
  CHECK(mentions(bare.status(), "HOROVOD_SECRET_KEY"));
  CHECK(mentions(bare.status(), "openssl rand"));
  const auto with = TcpBootstrap::connect(0, 2, "0.0.0.0", free_port(), 0.1, "secret");
  CHECK(with.status().code == Code::kTimeout);  // it listened
}

TEST_CASE("bootstrap: silent strangers at the door do not delay the ranks") {
  const std::uint16_t port = free_port();
  test::run_ranks(3, [&](int thread) {
    if (thread == 2) {
      std::vector<Fd> silent;
      const Deadline deadline = Deadline::after_seconds(20);
      while (silent.size() < 20 && !deadline.expired()) {
        Result<Fd> stranger = connect_tcp(kHost, port, deadline);
        if (stranger.is_ok()) silent.push_back(stranger.take());
      }
      REQUIRE(silent.size() == 20);
      // One after the other, the silent ones would take two seconds each.
      REQUIRE(TcpBootstrap::connect(1, 2, kHost, port, 20).is_ok());
    } else if (thread == 0) {
      REQUIRE(TcpBootstrap::connect(0, 2, kHost, port, 20).is_ok());
    }
  });
}

TEST_CASE("bootstrap: a rank outside of the size and an unknown host are refused") {
  CHECK(TcpBootstrap::connect(2, 2, kHost, 1, 1).status().code == Code::kInvalidArgument);
  CHECK(TcpBootstrap::connect(0, 2, "no-such-host.invalid", 1, 1).status().code ==
        Code::kUnavailable);
}
