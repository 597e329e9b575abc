// TCP links: order, both directions at once, leftovers, ends of waiting, broken peers, signals and
// single bytes.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <csignal>
#include <cstring>
#include <memory>

#include "base/failpoint.h"
#include "ranks.h"
#include "transport/socket/socket.h"
#include "transport/tcp/tcp_links.h"

using namespace hvd;

namespace {

constexpr double kFlushSeconds = 60;  // a reader may get no core for a while

struct Shape {
  std::size_t slot_bytes = 4096, slots = 3, streams = 1;
};

struct Side {
  explicit Side(int rank) : number(rank) {}
  int number;
  Abort abort;
  std::atomic<bool> left{false};  // the other one has
  std::mutex mutex;
  std::vector<std::string> broken;
  std::unique_ptr<TcpLinks> links;
  std::unique_ptr<SendLink> to;
  std::unique_ptr<RecvLink> from;

  void open(const Shape& shape, std::vector<Fd> streams) {
    links = std::make_unique<TcpLinks>(
        shape.slot_bytes, shape.slots, abort,
        [this](int peer, const std::string& why) {
          const std::lock_guard<std::mutex> lock(mutex);
          broken.push_back(std::to_string(peer) + ": " + why);
        },
        [](const char* what) { FAIL_CHECK(what); }, kFlushSeconds);
    links->add(1 - number, std::move(streams), &left, false);
    REQUIRE(links->start());
    to = links->send_link(1 - number);
    from = links->recv_link(1 - number);
  }
};

struct Pair {
  explicit Pair(const Shape& shape = {}) {
    const auto streams = tcp_pairs(shape.streams);
    a.open(shape, std::move(streams->first));
    b.open(shape, std::move(streams->second));
  }
  static std::unique_ptr<std::pair<std::vector<Fd>, std::vector<Fd>>> tcp_pairs(std::size_t n) {
    auto all = std::make_unique<std::pair<std::vector<Fd>, std::vector<Fd>>>();
    Result<Fd> listener = listen_tcp("127.0.0.1", 0, 16);
    REQUIRE(listener.is_ok());
    for (std::size_t i = 0; i < n; ++i) {
      const Deadline deadline = Deadline::after_seconds(5);
      Result<Fd> one = connect_tcp("127.0.0.1", bound_port(listener.value()), deadline);
      REQUIRE(one.is_ok());
      Result<Fd> other = Fd();
      while (other.is_ok() && !other.value() && !deadline.expired())
        other = accept_one(listener.value());
      REQUIRE(other.is_ok());
      REQUIRE(other.value());
      all->first.push_back(one.take());
      all->second.push_back(other.take());
    }
    return all;
  }
  Side a{0}, b{1};
};

std::byte value_at(std::size_t slot, std::size_t i) {
  return static_cast<std::byte>((slot * 31 + i * 7 + i / 251) % 256);
}

std::size_t length_of(std::size_t slot, std::size_t most) {
  return slot % 7 == 3 ? 0 : slot % 5 == 4 ? (slot * 997) % most : most;
}

std::vector<std::byte> content_of(std::size_t slot, std::size_t most) {
  std::vector<std::byte> content(length_of(slot, most));
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = value_at(slot, i);
  return content;
}

void send_slots(Side& side, std::size_t from, std::size_t to) {
  for (std::size_t n = from; n < to; ++n) {
    Result<Slot> slot = side.to->acquire(side.abort);
    REQUIRE_MESSAGE(slot.is_ok(), slot.status().message);
    REQUIRE(reinterpret_cast<std::uintptr_t>(slot.value().data) % 64 == 0);
    const std::size_t bytes = length_of(n, slot.value().bytes);
    for (std::size_t i = 0; i < bytes; ++i) slot.value().data[i] = value_at(n, i);
    side.to->publish(bytes);
  }
}

void expect_slot(Side& side, const std::vector<std::byte>& content) {
  Result<Slot> slot = side.from->peek(side.abort);
  REQUIRE_MESSAGE(slot.is_ok(), slot.status().message);
  REQUIRE(reinterpret_cast<std::uintptr_t>(slot.value().data) % 64 == 0);
  REQUIRE(slot.value().bytes == content.size());
  REQUIRE((content.empty() || std::memcmp(slot.value().data, content.data(), content.size()) == 0));
  side.from->release();
}

void expect_slots(Side& side, std::size_t from, std::size_t to) {
  for (std::size_t n = from; n < to; ++n) expect_slot(side, content_of(n, side.to->slot_bytes()));
}

void run_both(Pair& pair, const std::function<void(Side&)>& body, int line = __builtin_LINE()) {
  test::run_ranks(2, [&](int rank) { body(rank == 0 ? pair.a : pair.b); }, 180, __FILE__, line);
}

}  // namespace

TEST_CASE("tcp links: slots arrive complete and in order, over one stream and over several") {
  for (const std::size_t streams : {1U, 2U, 5U}) {
    for (const std::size_t slot_bytes : {64U, 4096U, 262144U}) {
      CAPTURE(streams);
      CAPTURE(slot_bytes);
      Pair pair({slot_bytes, 3, streams});
      run_both(pair, [](Side& side) {
        if (side.number == 0) send_slots(side, 0, 200);
        if (side.number == 1) expect_slots(side, 0, 200);
      });
    }
  }
}

TEST_CASE("tcp links: both directions at once, from one thread per side, never wait in a circle") {
  for (const std::size_t streams : {1U, 3U}) {
    Pair pair({1U << 18U, 4, streams});
    run_both(pair, [](Side& side) {
      send_slots(side, 0, 4);  // as many as may be under way
      for (std::size_t n = 4; n < 200; ++n) {
        expect_slots(side, n - 4, n - 3);
        send_slots(side, n, n + 1);
      }
      expect_slots(side, 196, 200);
    });
  }
}

TEST_CASE("tcp links: a sender and a receiver thread on one side") {
  Pair pair({65536, 2, 2});
  run_both(pair, [](Side& side) {
    std::thread sender([&] { send_slots(side, 0, 300); });
    expect_slots(side, 0, 300);
    sender.join();
  });
}

TEST_CASE("tcp links: data that the socket rejects is sent without a waiter") {
  Pair pair({8U << 20U, 4, 1});  // more than the sockets hold
  send_slots(pair.a, 0, 3);      // returns, and this side does nothing more
  test::run_ranks(1, [&](int) { expect_slots(pair.b, 0, 3); });
}

TEST_CASE("tcp links: the end flushes pending data") {
  Pair pair({8U << 20U, 4, 2});
  std::vector<std::vector<std::byte>> sent;
  for (std::size_t n = 0; n < 3; ++n) sent.push_back(content_of(n, 8U << 20U));
  send_slots(pair.a, 0, sent.size());
  test::run_ranks(2, [&](int rank) {
    if (rank == 0) return pair.a.links.reset();
    for (const auto& content : sent) expect_slot(pair.b, content);
  });
}

TEST_CASE("tcp links: an abort ends both kinds of wait at once") {
  Pair pair({1U << 20U, 2, 1});
  test::run_ranks(3, [&](int thread) {
    if (thread == 0) CHECK(pair.a.from->peek(pair.a.abort).status().message == "gone");
    if (thread == 1) {
      Result<Slot> slot = pair.a.to->acquire(pair.a.abort);
      for (; slot.is_ok(); slot = pair.a.to->acquire(pair.a.abort)) pair.a.to->publish(1U << 20U);
      CHECK(slot.status().message == "gone");
    }
    if (thread == 2) {
      CHECK(pair.a.abort.raise(Status::make(Code::kRankDied, "gone", "test", 1)));
      pair.a.links->wake();
    }
  });
}

TEST_CASE("tcp links: data sent before a goodbye arrives, then the link is shut") {
  Pair pair;
  test::run_ranks(2, [&](int rank) {
    if (rank == 0) {
      send_slots(pair.a, 0, 2);
      pair.b.left.store(true);
      pair.a.links.reset();
      pair.b.links->wake();
      return;
    }
    expect_slots(pair.b, 0, 2);
    const Status status = pair.b.from->peek(pair.b.abort).status();
    CHECK(status.code == Code::kShutdown);
    CHECK(status.message == "rank 0 has shut down while this rank still needs it");
  });
}

TEST_CASE("tcp links: a sender is notified that the peer will not read any more") {
  Pair pair({1U << 20U, 2, 1});
  pair.a.left.store(true);
  test::run_ranks(2, [&](int rank) {
    if (rank == 1) return pair.b.links.reset();
    Result<Slot> slot = pair.a.to->acquire(pair.a.abort);
    for (; slot.is_ok(); slot = pair.a.to->acquire(pair.a.abort)) pair.a.to->publish(1U << 20U);
    CHECK(slot.status().code == Code::kShutdown);
  });
}

TEST_CASE("tcp links: a connection that ends without a goodbye is reported once to the watch") {
  for (const std::size_t words : {0U, 5U}) {
    auto streams = Pair::tcp_pairs(1);
    Side side(0);
    side.open({4096, 3, 1}, std::move(streams->first));
    REQUIRE(send_all(streams->second[0], std::string(words, '\1'), Deadline::after_seconds(5)));
    streams->second.clear();
    test::run_ranks(2, [&](int thread) {
      if (thread == 0) CHECK(side.from->peek(side.abort).status().message == "told");
      if (thread == 1) {
        const Deadline deadline = Deadline::after_seconds(20);
        std::vector<std::string> heard;
        while (heard.empty() && !deadline.expired()) {
          const std::lock_guard<std::mutex> lock(side.mutex);
          heard = side.broken;
        }
        CHECK(side.abort.raise(Status::make(Code::kRankDied, "told", "test", 1)));
        side.links->wake();
      }
    });
    REQUIRE(side.broken.size() == 1);
    CHECK(side.broken[0] == std::string("1: its data connection broke: closed") +
                                (words == 0 ? "" : " in the middle of a slot"));
  }
}

TEST_CASE("tcp links: a length that does not fit into a slot is refused") {
  auto streams = Pair::tcp_pairs(1);
  Side side(0);
  side.open({4096, 3, 1}, std::move(streams->first));
  REQUIRE(send_all(streams->second[0], std::string("\x01\x10\0\0\0\0\0\0more", 12),
                   Deadline::after_seconds(5)));
  test::run_ranks(2, [&](int thread) {
    if (thread == 0) CHECK(side.from->peek(side.abort).status().message == "refused");
    if (thread == 1) {
      const Deadline deadline = Deadline::after_seconds(20);
      for (bool heard = false; !heard && !deadline.expired();) {
        const std::lock_guard<std::mutex> lock(side.mutex);
        heard = !side.broken.empty();
      }
      CHECK(side.abort.raise(Status::make(Code::kInternal, "refused", "test", 1)));
    }
  });
  REQUIRE(side.broken.size() == 1);
  CHECK(side.broken[0] == "1: its data connection broke: a slot announced 4097 bytes");
}

TEST_CASE("tcp links: E6 single bytes at a time give the same bytes") {
  arm_failpoints("tcp.one_byte:fail");
  {
    Pair pair({1024, 3, 2});
    run_both(pair, [](Side& side) {
      if (side.number == 0) send_slots(side, 0, 30);
      if (side.number == 1) expect_slots(side, 0, 30);
    });
  }
  arm_failpoints("");
}

TEST_CASE("tcp links: E6 a storm of signals is invisible") {
  static std::atomic<int> signals{0};
  struct sigaction storm{}, before{};
  storm.sa_handler = [](int) { ++signals; };  // without SA_RESTART
  REQUIRE(::sigaction(SIGALRM, &storm, &before) == 0);
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_BLOCK, &alarm, nullptr);  // the ranks' threads shall get it
  const itimerval fast{{0, 1000}, {0, 1000}}, off{{0, 0}, {0, 0}};
  REQUIRE(::setitimer(ITIMER_REAL, &fast, nullptr) == 0);
  for (int round = 0; round < 20 || signals.load() < 50; ++round) {
    Pair pair({65536, 3, 2});
    run_both(pair, [&](Side& side) {
      ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
      send_slots(side, 0, 3);
      for (std::size_t n = 3; n < 60; ++n) {
        expect_slots(side, n - 3, n - 2);
        send_slots(side, n, n + 1);
      }
      expect_slots(side, 57, 60);
    });
  }
  REQUIRE(::setitimer(ITIMER_REAL, &off, nullptr) == 0);
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  REQUIRE(::sigaction(SIGALRM, &before, nullptr) == 0);
  CHECK(signals.load() >= 50);
}
