// Meshes of every kind: data, control, abort, goodbye; ranks as threads that meet like processes.
#include <dirent.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "base/failpoint.h"
#include "control_wait.h"
#include "ranks.h"
#include "transport/mesh/mesh.h"

using namespace hvd;

namespace {

MeshOptions with(const std::string& transport) {
  MeshOptions options;
  options.transport = transport;
  options.slot_bytes = 4096;
  options.slots = 3;
  options.flush_s = 60;  // a reader may get no core for a while
  return options;
}

// body(mesh) on every rank; the meshes are connected like processes do it.
void run_mesh(int size, const std::vector<MeshOptions>& options,
              const std::function<void(Mesh&)>& body, int line = __builtin_LINE()) {
  test::Meeting meeting(size);
  test::run_ranks(
      size,
      [&](int rank) {
        test::ThreadBootstrap bootstrap(meeting, rank);
        auto mesh = connect_mesh(rank, size, bootstrap,
                                 options[static_cast<std::size_t>(rank) % options.size()]);
        REQUIRE_MESSAGE(mesh.is_ok(), mesh.status().message);
        body(*mesh.value());
      },
      180, __FILE__, line);
}

// A whole vector of numbers through a link, in as many slots as it takes.
void send_numbers(Mesh& mesh, int peer, std::uint32_t seed, std::size_t count) {
  SendLink& link = mesh.to(peer);
  const std::size_t per_slot = link.slot_bytes() / 4;
  for (std::size_t at = 0; at < count; at += per_slot) {
    Result<Slot> slot = link.acquire(mesh.abort());
    REQUIRE_MESSAGE(slot.is_ok(), slot.status().message);
    const std::size_t n = std::min(per_slot, count - at);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t value = seed + static_cast<std::uint32_t>(at + i);
      std::memcpy(slot.value().data + 4 * i, &value, 4);
    }
    link.publish(4 * n);
  }
}

void expect_numbers(Mesh& mesh, int peer, std::uint32_t seed, std::size_t count) {
  RecvLink& link = mesh.from(peer);
  for (std::size_t at = 0; at < count;) {
    Result<Slot> slot = link.peek(mesh.abort());
    REQUIRE_MESSAGE(slot.is_ok(), slot.status().message);
    const std::size_t n = slot.value().bytes / 4;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::uint32_t value = 0;
      std::memcpy(&value, slot.value().data + 4 * i, 4);
      if (value != seed + static_cast<std::uint32_t>(at + i)) ++wrong;
    }
    REQUIRE(wrong == 0);
    link.release();
    at += n;
  }
}

// Rank 0 hears of every other rank and answers each; afterwards all have met. An abort ends it
// early.
void meet_over_control(Mesh& mesh) {
  const Topology& here = mesh.topology();
  if (here.rank != 0) {
    REQUIRE(mesh.send_control(0, "from " + std::to_string(here.rank)).is_ok());
    ControlMessage answer;
    while (answer.from < 0 && !mesh.abort().raised())
      answer = test::wait_control(mesh, std::chrono::seconds(20));
    if (answer.from < 0) return;
    CHECK(answer.from == 0);
    CHECK(answer.bytes == "to " + std::to_string(here.rank));
    return;
  }
  for (int heard = 1; heard < here.size;) {
    const ControlMessage message = test::wait_control(mesh, std::chrono::seconds(20));
    if (message.from < 0) continue;
    CHECK(message.bytes == "from " + std::to_string(message.from));
    ++heard;
  }
  for (int peer = 1; peer < here.size; ++peer)
    REQUIRE(mesh.send_control(peer, "to " + std::to_string(peer)).is_ok());
}

void leave_after_all(Mesh& mesh) {
  meet_over_control(mesh);
  mesh.leave();
  CHECK_FALSE(mesh.abort().raised());
}

int open_descriptors() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

int threads() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/task");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// A thread that has been joined may be listed for a moment longer.
bool threads_come_down_to(int most) {
  const Deadline deadline = Deadline::after_seconds(30);
  while (threads() > most && !deadline.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return threads() <= most;
}

}  // namespace

TEST_CASE("mesh: data flows between all pairs, over shared memory, TCP and both") {
  MeshOptions west = with("auto"), east = with("auto");
  west.host = "west";
  east.host = "east";
  west.tcp_interface = east.tcp_interface = "127.0.0.1";
  const std::vector<std::pair<std::string, std::vector<MeshOptions>>> kinds{
      {"shm", {with("shm")}}, {"tcp", {with("tcp")}}, {"two hosts", {west, west, east, east}}};
  for (const auto& [name, options] : kinds) {
    for (const int size : {1, 2, 3, 4}) {
      CAPTURE(name);
      CAPTURE(size);
      run_mesh(size, options, [&, n = size](Mesh& mesh) {
        const int rank = mesh.topology().rank;
        for (int round = 0; round < 3; ++round) {
          // Ring order: everybody sends to the next one first; more than the slots hold, so a
          // reader is needed on the way.
          const int next = (rank + 1) % n, before = (rank + n - 1) % n;
          if (n == 1) break;
          std::thread sender([&] {
            send_numbers(mesh, next, static_cast<std::uint32_t>(rank * 1000 + round), 50'000);
          });
          expect_numbers(mesh, before, static_cast<std::uint32_t>(before * 1000 + round), 50'000);
          sender.join();
        }
        for (int peer = 0; peer < n; ++peer)
          if (peer != rank) send_numbers(mesh, peer, static_cast<std::uint32_t>(rank), 1024);
        for (int peer = 0; peer < n; ++peer)
          if (peer != rank) expect_numbers(mesh, peer, static_cast<std::uint32_t>(peer), 1024);
        leave_after_all(mesh);
      });
    }
  }
}

TEST_CASE("mesh: the topology counts hosts and the ranks on them") {
  MeshOptions west = with("auto"), east = with("auto");
  west.host = "west";
  east.host = "east";
  west.tcp_interface = east.tcp_interface = "127.0.0.1";
  run_mesh(3, {west, east, west}, [](Mesh& mesh) {
    const Topology& t = mesh.topology();
    const std::vector<std::vector<int>> expected{{0, 2, 0, 2}, {0, 1, 1, 2}, {1, 2, 0, 1}};
    const std::vector<int> found{t.local_rank, t.local_size, t.cross_rank, t.cross_size};
    CHECK(found == expected[static_cast<std::size_t>(t.rank)]);
    CHECK_FALSE(t.homogeneous);
    for (int peer = 0; peer < 3; ++peer)
      if (peer != t.rank) CHECK(mesh.transport_to(peer) == (peer + t.rank == 2 ? "shm" : "tcp"));
    leave_after_all(mesh);
  });
}

TEST_CASE("mesh: local and cross ranks are those configured, sizes and hosts the real ones") {
  MeshOptions first = with("auto"), second = with("auto");
  first.place = Place{1, 0, 3};
  second.place = Place{0, 2, 4};
  run_mesh(2, {first, second}, [](Mesh& mesh) {
    const Topology& t = mesh.topology();
    const std::vector<std::vector<int>> expected{{1, 2, 0, 3}, {0, 2, 2, 4}};
    const std::vector<int> found{t.local_rank, t.local_size, t.cross_rank, t.cross_size};
    CHECK(found == expected[static_cast<std::size_t>(t.rank)]);
    CHECK(t.host_of == std::vector<int>{0, 0});
    leave_after_all(mesh);
  });
}

TEST_CASE("mesh: large control messages in both directions at once do not wait for each other") {
  const std::string large(3U << 20, 'x');
  for (const std::string transport : {"shm", "tcp"}) {
    run_mesh(3, {with(transport)}, [&](Mesh& mesh) {
      const int rank = mesh.topology().rank;
      int wanted = rank == 0 ? 2 : 1;
      for (int peer = 0; peer < 3; ++peer)
        if (peer != rank && (rank == 0 || peer == 0))
          REQUIRE(mesh.send_control(peer, large).is_ok());
      while (wanted > 0) {
        const ControlMessage message = test::wait_control(mesh, std::chrono::seconds(20));
        if (message.from < 0) continue;
        REQUIRE((message.bytes == large));  // not to be printed
        --wanted;
      }
      mesh.leave();  // the others may still be at it
    });
  }
}

TEST_CASE("mesh: sending control does not wait for a peer that is busy in a collective") {
  constexpr int kMessages = 4000;
  for (const std::string transport : {"shm", "tcp"}) {
    run_mesh(2, {with(transport)}, [&](Mesh& mesh) {
      const int rank = mesh.topology().rank;
      const std::string message(1000, static_cast<char>('a' + rank));
      // Far more than a socket buffers, and no rank reads: then data, which needs both.
      for (int i = 0; i < kMessages; ++i)
        REQUIRE(mesh.send_control(1 - rank, message + std::to_string(i)).is_ok());
      send_numbers(mesh, 1 - rank, 3, 1024);
      expect_numbers(mesh, 1 - rank, 3, 1024);
      const std::string expected(1000, static_cast<char>('b' - rank));
      int wrong = 0;
      for (int i = 0; i < kMessages;) {
        const ControlMessage got = test::wait_control(mesh, std::chrono::seconds(20));
        if (got.from < 0) continue;
        if (got.bytes != expected + std::to_string(i++)) ++wrong;
      }
      CHECK(wrong == 0);
      mesh.leave();
    });
  }
}

TEST_CASE("mesh: a ring of the doorbell ends a wait for control, and so does its deadline") {
  for (const std::string transport : {"shm", "tcp"}) {
    run_mesh(2, {with(transport)}, [&](Mesh& mesh) {
      if (mesh.topology().rank == 1) {  // rank 0 says nothing before it hears of rank 1
        const auto start = Clock::now();
        CHECK(test::wait_control(mesh, std::chrono::milliseconds(20)).from == -1);
        CHECK(Clock::now() - start >= std::chrono::milliseconds(20));
        CHECK(test::wait_control(mesh, std::chrono::nanoseconds(0)).from == -1);
        CHECK(test::wait_control(mesh, std::chrono::nanoseconds(-1)).from == -1);
        // Earlier messages count: a ring before the wait ends it too.
        const std::uint32_t seen = mesh.doorbell().heard();
        std::thread waker([&] { mesh.doorbell().ring(); });
        mesh.doorbell().announce();
        mesh.doorbell().wait(seen, std::chrono::hours(1000));
        mesh.doorbell().awake();
        waker.join();
        CHECK(mesh.doorbell().heard() != seen);
      }
      leave_after_all(mesh);
    });
  }
}

TEST_CASE("mesh: raise_everywhere ends every kind of wait on every rank with the first cause") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    run_mesh(4, {with(transport)}, [&](Mesh& mesh) {
      const int rank = mesh.topology().rank;
      if (rank == 3) {
        meet_over_control(mesh);
        mesh.raise_everywhere(
            Status::make(Code::kAborted, "rank 3 raised ValueError: no", "test", 3));
      } else {
        meet_over_control(mesh);
        if (rank == 0)
          while (!mesh.abort().raised()) test::wait_control(mesh, std::chrono::hours(1));
        if (rank == 1) CHECK(mesh.from(3).peek(mesh.abort()).status().code == Code::kAborted);
        if (rank == 2)
          for (Result<Slot> slot = mesh.to(3).acquire(mesh.abort()); slot.is_ok();
               slot = mesh.to(3).acquire(mesh.abort()))
            mesh.to(3).publish(4096);  // until the ring and the socket behind it are full
      }
      CHECK(mesh.abort().cause().message == "rank 3 raised ValueError: no");
      CHECK(mesh.abort().cause().rank == 3);
      CHECK(mesh.send_control(rank == 0 ? 1 : 0, "late").code == Code::kAborted);
      mesh.leave();
    });
  }
}

TEST_CASE("mesh: a goodbye is not a death, and data sent before it arrives") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    run_mesh(3, {with(transport)}, [&](Mesh& mesh) {
      const int rank = mesh.topology().rank;
      meet_over_control(mesh);
      if (rank == 0) {
        send_numbers(mesh, 1, 5, 3000);  // all the slots there are
        mesh.leave();
        return;
      }
      while (!mesh.has_left(0)) test::wait_control(mesh, std::chrono::seconds(20));
      if (rank == 1) {
        expect_numbers(mesh, 0, 5, 3000);
        const Status status = mesh.from(0).peek(mesh.abort()).status();
        CHECK(status.code == Code::kShutdown);
        CHECK(status.rank == 0);
        expect_numbers(mesh, 2, 9, 2000);  // the others go on
      } else {
        send_numbers(mesh, 1, 9, 2000);
        CHECK(mesh.from(1).peek(mesh.abort()).status().code == Code::kShutdown);
      }
      CHECK_FALSE(mesh.abort().raised());
      mesh.leave();
    });
  }
}

TEST_CASE("mesh: a goodbye that arrives while the watch is starved is not a death") {
  std::atomic<bool> armed{false};
  run_mesh(2, {with("tcp")}, [&](Mesh& mesh) {
    meet_over_control(mesh);
    if (mesh.topology().rank == 1) {
      // Between what it has read and what it makes of it, for longer than a suspicion lasts.
      arm_failpoints("watch.judge:delay=700");
      armed.store(true);
      while (failpoint_passages("watch.judge") == 0) std::this_thread::yield();
      REQUIRE(mesh.send_control(0, "go").is_ok());
      CHECK(mesh.from(0).peek(mesh.abort()).status().code == Code::kShutdown);
      CHECK_FALSE(mesh.abort().raised());
      arm_failpoints("");
    } else {
      while (!armed.load()) std::this_thread::yield();
      REQUIRE(mesh.send_control(1, "wakes its watch").is_ok());
      CHECK(test::next_control(mesh).bytes == "go");
    }
    mesh.leave();
  });
}

TEST_CASE("mesh: A20 a thread that ends in an exception is the end on all ranks, with its name") {
  const struct Disarm {
    ~Disarm() { arm_failpoints(""); }
  } disarm;
  for (const auto& [point, thread] :
       {std::pair<std::string, std::string>{"watch.judge", "hvd-watch"}, {"tcp.io", "hvd-io"}}) {
    CAPTURE(point);
    run_mesh(2, {with("tcp")}, [&, &where = point, &who = thread](Mesh& mesh) {
      meet_over_control(mesh);
      if (mesh.topology().rank == 0) {
        arm_failpoints((where + ":throw@1").c_str());
        REQUIRE(mesh.send_control(1, "wakes its watch").is_ok());
        Result<Slot> slot = mesh.to(1).acquire(mesh.abort());  // nobody reads: some is left to send
        for (; slot.is_ok(); slot = mesh.to(1).acquire(mesh.abort())) mesh.to(1).publish(4096);
      }
      while (!mesh.abort().raised()) std::this_thread::yield();
      const Status cause = mesh.abort().cause();
      CHECK(cause.code == Code::kInternal);
      CHECK(cause.message == "rank " + std::to_string(cause.rank) + ": its thread " + who +
                                 " has ended: failpoint " + where);
      mesh.leave();
    });
    arm_failpoints("");
  }
}

TEST_CASE("mesh: a rank that vanishes without a goodbye is named on the others") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    run_mesh(3, {with(transport)}, [&](Mesh& mesh) {
      meet_over_control(mesh);
      if (mesh.topology().rank == 2) return;
      const Status status = mesh.from(2).peek(mesh.abort()).status();
      CHECK(status.code == Code::kRankDied);
      CHECK(status.rank == 2);
      CHECK(status.message.find("rank 2") != std::string::npos);
      mesh.leave();
    });
  }
}

TEST_CASE("mesh: different settings are refused on every rank, naming both") {
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    test::ThreadBootstrap bootstrap(meeting, rank);
    const auto mesh = connect_mesh(rank, 2, bootstrap, with(rank == 0 ? "shm" : "tcp"));
    REQUIRE_FALSE(mesh.is_ok());
    CHECK(mesh.status().code == Code::kInvalidArgument);
    CHECK(mesh.status().message.find("rank 0") != std::string::npos);
    CHECK(mesh.status().message.find("rank 1") != std::string::npos);
  });
}

TEST_CASE("mesh: wrong options are refused before any message") {
  test::Meeting meeting(1);
  test::ThreadBootstrap bootstrap(meeting, 0);
  const auto refused = [&](const std::function<void(MeshOptions&)>& spoil, int rank = 0,
                           int size = 2) {
    MeshOptions options;
    spoil(options);
    return connect_mesh(rank, size, bootstrap, options).status().code == Code::kInvalidArgument;
  };
  CHECK(refused([](MeshOptions& o) { o.transport = "carrier pigeon"; }));
  CHECK(refused([](MeshOptions& o) { o.slot_bytes = 1; }));
  CHECK(refused([](MeshOptions& o) { o.slots = 1; }));
  CHECK(refused([](MeshOptions& o) { o.slots = 65; }));
  CHECK(refused([](MeshOptions& o) { o.start_timeout_s = 0; }));
  CHECK(refused([](MeshOptions&) {}, 2, 2));
  CHECK(refused([](MeshOptions&) {}, -1, 2));
  CHECK(refused([](MeshOptions&) {}, 0, 0));
}

TEST_CASE("mesh: 200 cycles of connecting and leaving leave no descriptor and no thread") {
  const auto cycle = [](const std::string& transport) {
    run_mesh(2, {with(transport)}, [&](Mesh& mesh) {
      const int peer = 1 - mesh.topology().rank;
      send_numbers(mesh, peer, 1, 100);
      expect_numbers(mesh, peer, 1, 100);
      mesh.leave();
    });
  };
  cycle("shm");
  cycle("tcp");
  const int descriptors = open_descriptors();
  const int threads_before = threads();
  for (int i = 0; i < 100; ++i) {
    cycle("shm");
    cycle("tcp");
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(threads_come_down_to(threads_before));
}
