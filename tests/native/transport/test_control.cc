// The control channel over shared rings: every size, both directions at once, counters that wrap
// around, lengths that lie; and the doorbell.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>

#include "base/deadline.h"
#include "control_wait.h"
#include "ranks.h"
#include "transport/control/control_line.h"
#include "transport/mesh/mesh.h"
#include "transport/shm/heap_ring.h"
#include "transport/socket/socket.h"

using namespace hvd;

namespace {

constexpr std::uint32_t kAlmost = 0xFFFFFFFDU;  // three before the counters wrap around

MeshOptions options_of(const std::string& transport, std::uint32_t first_count = 0) {
  MeshOptions options;
  options.transport = transport;
  options.slot_bytes = 4096;
  options.heap_bytes = std::size_t{16} << 20U;
  options.first_count = first_count;
  options.flush_s = 60;  // a reader may get no core for a while
  return options;
}

// "local" for threads that share a hub, else the transport of ranks that meet like processes.
void run_mesh(const std::string& kind, int size, MeshOptions options,
              const std::function<void(Mesh&)>& body) {
  if (kind == "local") {
    auto meshes = make_local_meshes(size, options);
    test::run_ranks(size, [&](int rank) { body(*meshes[static_cast<std::size_t>(rank)]); });
    return;
  }
  options.transport = kind;
  test::Meeting meeting(size);
  test::run_ranks(size, [&](int rank) {
    test::ThreadBootstrap bootstrap(meeting, rank);
    auto mesh = connect_mesh(rank, size, bootstrap, options);
    REQUIRE_MESSAGE(mesh.is_ok(), mesh.status().message);
    body(*mesh.value());
  });
}

std::string message_of(int from, std::size_t number, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i)
    text[i] = static_cast<char>(i * 31 + number * 7 + static_cast<std::size_t>(from));
  return text;
}

const std::vector<std::size_t> kSizes{0,     1,      100,    65527, 65528,        65529, 65536, 3,
                                      65537, 200000, 131072, 7,     (10U << 20U), 0,     5};

}  // namespace

TEST_CASE("control: messages of 0 bytes to 10 MB, both ways at once, in order, also on the wrap") {
  for (const std::string kind : {"local", "shm", "tcp"}) {
    for (const std::uint32_t first : {0U, kAlmost}) {
      CAPTURE(kind);
      CAPTURE(first);
      run_mesh(kind, 3, options_of(kind, first), [&](Mesh& mesh) {
        const int rank = mesh.topology().rank;
        std::vector<int> peers = rank == 0 ? std::vector<int>{1, 2} : std::vector<int>{0};
        for (std::size_t i = 0; i < kSizes.size(); ++i)
          for (const int peer : peers)
            REQUIRE(mesh.send_control(peer, message_of(rank, i, kSizes[i])).is_ok());
        std::vector<std::size_t> heard(3);
        for (std::size_t left = peers.size() * kSizes.size(); left > 0; --left) {
          const ControlMessage got = test::next_control(mesh);
          REQUIRE(got.from >= 0);
          const std::size_t i = heard[static_cast<std::size_t>(got.from)]++;
          REQUIRE((got.bytes == message_of(got.from, i, kSizes[i])));  // not to be printed
        }
        mesh.leave();
      });
    }
  }
}

TEST_CASE("control: pending messages are sent while their sender waits in a link") {
  const std::string large(1U << 20U, 'x');
  for (const std::string kind : {"local", "shm", "tcp"}) {
    CAPTURE(kind);
    run_mesh(kind, 2, options_of(kind), [&](Mesh& mesh) {
      if (mesh.topology().rank == 0) {
        REQUIRE(mesh.send_control(1, large).is_ok());
        REQUIRE(mesh.from(1).peek(mesh.abort()).is_ok());  // comes after the message was read
        mesh.from(1).release();
      } else {
        CHECK((test::next_control(mesh).bytes == large));
        REQUIRE(mesh.to(0).acquire(mesh.abort()).is_ok());
        mesh.to(0).publish(1);
      }
      mesh.leave();
    });
  }
}

TEST_CASE("control: a tree of fanout 2 connects only parents and children") {
  for (const std::string kind : {"local", "shm"}) {
    MeshOptions options = options_of(kind);
    options.fanout = 2;
    run_mesh(kind, 6, options, [&](Mesh& mesh) {
      const int rank = mesh.topology().rank;
      if (rank == 5) CHECK(mesh.send_control(0, "x").code == Code::kInternal);
      // From the leaves to the root and back.
      std::vector<int> children = children_of(rank, 6, 2);
      for (std::size_t i = 0; i < children.size(); ++i)
        CHECK(parent_of(test::next_control(mesh).from, 2) == rank);
      if (rank != 0) {
        REQUIRE(mesh.send_control(parent_of(rank, 2), "up").is_ok());
        CHECK(test::next_control(mesh).from == parent_of(rank, 2));
      }
      for (const int child : children) REQUIRE(mesh.send_control(child, "down").is_ok());
      mesh.leave();
    });
  }
}

TEST_CASE("control: lengths that lie are refused, and never lead out of the ring") {
  struct Lie {
    std::uint32_t written;  // what the peer says it has written
    std::uint32_t length;   // of the frame at the beginning
  };
  for (const Lie lie : {Lie{kControlRingBytes + 1, 0}, Lie{0xFFFFFFFFU, 0}, Lie{0x80000000U, 0},
                        Lie{8, kMaxFrame + 1}, Lie{8, 0xFFFFFFFFU}}) {
    const HeapControlRing up, down;
    std::memcpy(down.memory().bytes, &lie.length, sizeof lie.length);
    down.memory().header->written.store(lie.written);
    DoorbellMemory doorbells;
    Doorbell doorbell(doorbells);
    Abort abort;
    int failing = -1;
    Control control({&doorbell, &abort, [](int) { return false; }, [](int) {},
                     [&](int peer) {
                       failing = peer;
                       abort.raise(Status::make(Code::kInternal, "unreadable", "test", peer));
                     }});
    control.add(std::make_unique<MemoryLine>(7, up.memory(), down.memory(),
                                             MemoryLine::Calls{[] {}, [] {}, {}}));
    CHECK(control.poll().from == -1);
    CHECK(failing == 7);
    CHECK(control.send(7, "late").code == Code::kInternal);
  }
}

TEST_CASE("control: a broken connection is reported to the watch, and its sender does not wait") {
  class Broken final : public ControlLine {
   public:
    Broken() : ControlLine(7) {}
    bool send(const std::string& /*message*/) override { return false; }
    bool collect(std::deque<ControlMessage>& /*inbox*/) override { return true; }
    void flush() override {}
    bool pending() const override { return false; }
    void finish() override {}
  };
  DoorbellMemory doorbells;
  Doorbell doorbell(doorbells);
  Abort abort;
  std::vector<int> broken;
  Control control({&doorbell,
                   &abort,
                   [](int) { return false; },
                   [&](int peer) { broken.push_back(peer); },
                   {}});
  control.add(std::make_unique<Broken>());
  CHECK(control.send(7, "x").is_ok());  // what became of the peer is not known yet
  CHECK(broken == std::vector<int>{7});
  CHECK(control.poll().from == -1);
  REQUIRE(abort.raise(Status::make(Code::kRankDied, "gone", "test", 7)));
  CHECK(control.send(7, "x").message == "gone");
}

TEST_CASE("control: a leaving rank with pending data sleeps until it is sent") {
  class Kept final : public ControlLine {
   public:
    explicit Kept(const std::atomic<bool>& room) : ControlLine(7), room_(room) {}
    bool send(const std::string& /*message*/) override { return true; }
    bool collect(std::deque<ControlMessage>& /*inbox*/) override { return true; }
    void flush() override {}
    bool pending() const override { return !room_.load(); }
    void finish() override {}

   private:
    const std::atomic<bool>& room_;
  };
  DoorbellMemory doorbells;
  Doorbell doorbell(doorbells);
  Abort abort;
  std::atomic<bool> room{false};
  Control control({&doorbell, &abort, [](int) { return false; }, [](int) {}, {}});
  control.add(std::make_unique<Kept>(room));
  test::run_ranks(2, [&](int rank) {
    if (rank == 0) {
      control.flush(Deadline::never());
      CHECK(room.load());
    } else {
      while (doorbells.sleeps.load() == 0) std::this_thread::yield();
      room = true;
      doorbell.ring();
    }
  });
  CHECK(doorbells.sleeps.load() == 0);
}

TEST_CASE("control: F6 a duplicate, late or early message is refused") {
  struct Arrival {
    std::vector<std::uint32_t> numbers;  // of the frames, in the order in which they come
    std::size_t good;                    // of these, how many are taken
    bool refused;
  };
  for (const Arrival& arrival :
       {Arrival{{0, 1, 2}, 3, false}, Arrival{{0, 1, 1}, 2, true}, Arrival{{0, 1, 0}, 2, true},
        Arrival{{0, 2, 1}, 1, true}, Arrival{{1}, 0, true}, Arrival{{kAlmost}, 0, true}}) {
    std::string stream;
    for (const std::uint32_t number : arrival.numbers)
      stream += frame_of(number, "message " + std::to_string(number));
    const HeapControlRing up, down;
    MemoryLine memory(7, up.memory(), down.memory(), MemoryLine::Calls{[] {}, [] {}, {}});
    ControlWriter writer(down.memory());
    writer.write(stream);
    writer.show();
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const Fd peer(ends[1]);
    SocketLine socket(7, Fd(ends[0]), SocketLine::Calls{[] {}, [] {}});
    REQUIRE(send_all(peer, stream, Deadline::after_seconds(1)));
    socket.readable();
    for (ControlLine* const line :
         {static_cast<ControlLine*>(&memory), static_cast<ControlLine*>(&socket)}) {
      std::deque<ControlMessage> inbox;
      CHECK(line->collect(inbox) != arrival.refused);
      REQUIRE(inbox.size() == arrival.good);
      for (std::size_t i = 0; i < arrival.good; ++i) {
        CHECK(inbox[i].from == 7);
        CHECK(inbox[i].bytes == "message " + std::to_string(arrival.numbers[i]));
      }
    }
  }
}

TEST_CASE("control: a reader with a wrong position gets wrong bytes, and harms no peer") {
  const HeapControlRing up, down;
  MemoryLine line(7, up.memory(), down.memory(), MemoryLine::Calls{[] {}, [] {}, {}});
  for (const std::uint32_t read : {0x7FFFFFFFU, 0xFFFFFFFFU, 1U, 0U}) {
    up.memory().header->read.store(read);
    for (int i = 0; i < 40; ++i) CHECK(line.send(std::string(5000, 'x')));
    line.flush();
  }
}

TEST_CASE("doorbell: no ring is lost, for every sender and every number of sleeps") {
  constexpr int kRings = 5000;
  DoorbellMemory memory;
  std::atomic<int> sent{0};
  test::run_ranks(3, [&](int rank) {
    Doorbell doorbell(memory);
    if (rank > 0) {
      for (int i = 0; i < kRings; ++i) {
        ++sent;
        doorbell.ring();
      }
      return;
    }
    while (sent.load() < 2 * kRings) {
      const std::uint32_t seen = doorbell.heard();
      if (sent.load() >= 2 * kRings) break;
      doorbell.announce();
      if (sent.load() < 2 * kRings) doorbell.wait(seen, std::chrono::hours(1));
      doorbell.awake();
    }
  });
  CHECK(Doorbell(memory).heard() == 2 * kRings);
}

TEST_CASE("control: two ranks pass a message to and fro") {
  constexpr int kParts = 10, kRounds = 200;
  for (const std::string kind : {"local", "shm"}) {
    double fastest = 1e9;  // of the parts: other processes take the cores now and then
    run_mesh(kind, 2, options_of(kind), [&](Mesh& mesh) {
      const int rank = mesh.topology().rank;
      const std::string text(100, 'x');
      for (int part = 0; part < kParts; ++part) {
        const std::int64_t start = now_ns();
        for (int i = 0; i < kRounds; ++i) {
          if (rank == 0) REQUIRE(mesh.send_control(1, text).is_ok());
          ControlMessage got = mesh.poll_control();
          for (int looks = 0; got.from < 0 && looks < 2000; ++looks) got = mesh.poll_control();
          if (got.from < 0) got = test::next_control(mesh);
          REQUIRE(got.bytes.size() == 100);
          if (rank == 1) REQUIRE(mesh.send_control(0, text).is_ok());
        }
        const double each = static_cast<double>(now_ns() - start) / (2 * kRounds);
        if (rank == 0) fastest = std::min(fastest, each);
      }
      mesh.leave();
    });
    MESSAGE(kind << ": " << fastest << " ns per message of 100 bytes");
  }
}
