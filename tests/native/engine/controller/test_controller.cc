// Process sets, join, departures, stalls and regions, on rank 0 and in a tree.
#include <doctest/doctest.h>

#include "engine/controller/world.h"

namespace hvd::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

ControllerOptions tree_of(int fanout) {
  ControllerOptions options;
  options.fanout = fanout;
  return options;
}

void add_set(World& world, const std::vector<std::int64_t>& ranks, int id) {
  world.submit_all(about(Kind::kAddSet, "add", ranks));
  world.deliver_all();
  std::vector<std::int64_t> sizes{id};
  sizes.insert(sizes.end(), ranks.begin(), ranks.end());
  for (int rank = 0; rank < world.size(); ++rank) {
    const Response received = only_response(world, rank);
    CHECK_MESSAGE(received.status.is_ok(), received.status.message);
    CHECK(received.sizes == sizes);
    CHECK(world.at(rank).ranks_of(id) == std::vector<int>(ranks.begin(), ranks.end()));
  }
}

bool remove_set(World& world, int id) {
  world.submit_all(about(Kind::kRemoveSet, "remove", {id}));
  world.deliver_all();
  for (int rank = 1; rank < world.size(); ++rank) {
    const Response received = only_response(world, rank);
    CHECK(received.status.is_ok());
    CHECK(received.sizes.at(0) == id);
  }
  return only_response(world, 0).sizes.at(1) == 1;
}

// The same answer on all ranks.
Response answer(World& world) {
  world.deliver_all();
  const Response first = only_response(world, 0);
  for (int rank = 1; rank < world.size(); ++rank) {
    const Response received = only_response(world, rank);
    CHECK(received.status.message == first.status.message);
    CHECK(received.names == first.names);
    CHECK(received.sizes == first.sizes);
    CHECK(received.rank == first.rank);
  }
  return first;
}

}  // namespace

TEST_CASE("missing ranks are known by operation and rank") {
  World world(4);
  CHECK(world.at(0).idle());
  world.now = 5;
  world.submit(2, sum_of("x"));
  world.deliver_all();
  world.now = 9;
  world.submit(0, sum_of("x"));
  const auto waiting = world.at(0).waiting();
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].name == "x");
  CHECK(waiting[0].kind == Kind::kAllreduce);
  CHECK(waiting[0].since_ns == 5);
  CHECK(waiting[0].missing == std::vector<int>{1, 3});
  CHECK(waiting[0].requested == std::vector<int>{0, 2});
  CHECK_FALSE(world.at(0).idle());
  CHECK_FALSE(world.at(2).idle());
  CHECK(world.at(1).idle());
  REQUIRE(world.ready.size() == 2);
  CHECK(world.ready[0].rank == 2);
  CHECK(world.ready[1].rank == 0);
  CHECK(world.ready[1].at_ns == 9);
}

TEST_CASE("sets: only members receive their responses, and two sets may use one name") {
  for (const int fanout : {2, 64}) {
    World world(6, tree_of(fanout));
    add_set(world, {1, 4}, 1);
    add_set(world, {0, 4, 5}, 2);
    for (const int rank : {1, 4}) world.submit(rank, in_set(sum_of("x"), 1));
    for (const int rank : {4, 0}) world.submit(rank, in_set(sum_of("x"), 2));
    world.deliver_all();
    for (const int rank : {1, 4}) CHECK(only_response(world, rank).set == 1);
    world.submit(5, in_set(sum_of("x"), 2));
    world.deliver_all();
    for (const int rank : {0, 4, 5}) CHECK(only_response(world, rank).set == 2);
    for (const int rank : {2, 3}) CHECK(world.responses(rank).empty());
    for (int rank = 0; rank < 6; ++rank) CHECK(world.at(rank).idle());
  }
}

TEST_CASE("sets: ids ascend, and freed ids are reused in the order in which they were freed") {
  World world(4);
  add_set(world, {0}, 1);
  add_set(world, {1}, 2);
  add_set(world, {2}, 3);
  CHECK(remove_set(world, 3));
  CHECK(remove_set(world, 1));
  CHECK_FALSE(remove_set(world, 1));
  CHECK_FALSE(remove_set(world, 0));
  CHECK_FALSE(remove_set(world, 77));
  CHECK(world.at(2).ranks_of(1).empty());
  add_set(world, {0, 1}, 3);
  add_set(world, {0, 2}, 1);
  add_set(world, {0, 3}, 4);
}

TEST_CASE("sets: an invalid set is refused on every rank, and nothing is lost") {
  World world(3);
  add_set(world, {0, 1}, 1);
  world.submit_all(about(Kind::kAddSet, "add", {1, 0}));
  CHECK(answer(world).status.message == "Attempted to add a duplicate process set: [0, 1]");
  world.submit_all(about(Kind::kAddSet, "add", {0, 1, 2}));
  CHECK(answer(world).status.code == Code::kInvalidArgument);
  for (int rank = 0; rank < 3; ++rank)
    world.submit(rank, about(Kind::kAddSet, "add", {0, 1 + rank % 2}));
  const Status status = answer(world).status;
  CHECK(status.code == Code::kMismatch);
  CHECK(status.message ==
        "Attempted to register process set with mismatching size/values on different ranks. (ranks "
        "0, 2: [0, 1]; rank 1: [0, 2])");
  add_set(world, {1, 2}, 2);
}

TEST_CASE("sets: requests to a removed set fail, also if they arrive at rank 0 later") {
  World world(3);
  add_set(world, {1, 2}, 1);
  world.submit(1, in_set(sum_of("heard"), 1));
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank)
    world.at(rank).submit(about(Kind::kRemoveSet, "remove", {1}), 0);
  world.at(2).submit(in_set(sum_of("late"), 1), 0);
  world.collect(1);
  world.deliver_all();
  world.collect(2);
  world.deliver_all();
  for (const int rank : {1, 2}) {
    const std::vector<Response> received = world.responses(rank);
    REQUIRE(received.size() == 2);
    CHECK(received[0].names == std::vector<std::string>{rank == 1 ? "heard" : "late"});
    CHECK(received[0].status.code == Code::kInvalidArgument);
    CHECK(received[1].kind == Kind::kRemoveSet);
    CHECK(world.at(rank).idle());
  }
  CHECK(only_response(world, 0).kind == Kind::kRemoveSet);
  CHECK(world.at(0).idle());
  // The id comes back; what was meant for the old set does not.
  add_set(world, {0, 2}, 1);
  world.submit(0, in_set(sum_of("late"), 1));
  world.deliver_all();
  CHECK(world.responses(0).empty());
  world.submit(2, in_set(sum_of("late"), 1));
  world.deliver_all();
  CHECK(only_response(world, 0).status.is_ok());
  CHECK(only_response(world, 2).status.is_ok());
}

TEST_CASE("regions are numbered in order; unequal sizes are a mismatch") {
  World world(3);
  for (const std::int64_t region : {0, 1}) {
    world.submit_all(about(Kind::kAllocate, "allocate", {4096}));
    CHECK(answer(world).sizes == std::vector<std::int64_t>{region, 4096});
  }
  world.submit_all(about(Kind::kRelease, "release", {0}));
  CHECK(answer(world).sizes == std::vector<std::int64_t>{0});
  for (int rank = 0; rank < 3; ++rank)
    world.submit(rank, about(Kind::kAllocate, "allocate", {rank + 1}));
  CHECK(
      answer(world).status.message ==
      "Mismatched ALLOCATE arguments: One rank sent [1], but another rank sent [2]. (rank 0: [1]; "
      "rank 1: [2]; rank 2: [3])");
}

TEST_CASE("join: other ranks continue without the joined rank, with or without a cached request") {
  for (const int fanout : {2, 64}) {
    World world(7, tree_of(fanout));
    world.submit_all(sum_of("known"));
    CHECK(answer(world).absent.empty());
    world.submit(5, about(Kind::kJoin, "join of five"));
    for (int rank = 0; rank < 7; ++rank) {
      if (rank == 5) continue;
      world.submit(rank, sum_of("known"));
      world.submit(rank, sum_of("new", {3}));
    }
    world.deliver_all();
    for (int rank = 0; rank < 7; ++rank) {
      const std::vector<Response> received = world.responses(rank);
      REQUIRE(received.size() == 2);
      for (const Response& response : received) {
        CHECK(response.status.is_ok());
        REQUIRE(response.absent.size() == response.names.size());
        CHECK(response.absent[0].name == response.names[0]);
        CHECK(response.absent[0].tensors.at(0).dtype == Dtype::kFloat32);
      }
    }
    for (int rank = 0; rank < 7; ++rank) {
      if (rank != 5) world.submit(rank, about(Kind::kJoin, "j" + std::to_string(rank)));
      world.deliver_all();
    }
    for (int rank = 0; rank < 7; ++rank) {
      const Response received = only_response(world, rank);
      CHECK(received.kind == Kind::kJoin);
      CHECK(received.rank == 6);
      CHECK(received.names.at(0) == (rank == 5 ? "join of five" : "j" + std::to_string(rank)));
      CHECK(world.at(rank).idle());
    }
    world.submit_all(sum_of("known"));  // and the state is as before
    CHECK(answer(world).absent.empty());
  }
}

TEST_CASE("join: operations that need the joined rank fail for the requesters; it stays joined") {
  for (const Kind kind :
       {Kind::kAllgather, Kind::kBroadcast, Kind::kAlltoall, Kind::kReducescatter}) {
    World world(3);
    world.submit(1, about(Kind::kJoin, "join"));
    for (const int rank : {0, 2}) {
      Request request = of_kind(kind, "x", {3});
      if (kind == Kind::kAlltoall) request.sizes = {1, 1, 1};
      world.submit(rank, request);
    }
    world.deliver_all();
    CHECK(world.responses(1).empty());
    for (const int rank : {0, 2}) {
      const Response received = only_response(world, rank);
      CHECK(received.status.code == Code::kMismatch);
      CHECK(received.status.message.find(" is not supported with Join at this time.") !=
            std::string::npos);
      CHECK(received.status.message.find("(rank 1 joined)") != std::string::npos);
    }
    for (const int rank : {0, 2}) world.submit(rank, about(Kind::kJoin, "join"));
    CHECK(answer(world).rank == 2);
  }
}

TEST_CASE("join: a rank's other requests wait until all have joined; its sets go on") {
  World world(2);
  add_set(world, {0}, 1);
  world.submit(0, about(Kind::kJoin, "join"));
  world.submit(0, sum_of("early"));
  world.submit(0, in_set(sum_of("own"), 1));
  CHECK(only_response(world, 0).names.at(0) == "own");
  world.submit(1, about(Kind::kJoin, "join"));
  CHECK(answer(world).rank == 1);
  world.submit(1, sum_of("early"));
  CHECK(answer(world).absent.empty());
}

TEST_CASE("a rank that leaves fails operations that need it, now and later, and no others") {
  for (const int fanout : {2, 64}) {
    World world(6, tree_of(fanout));
    add_set(world, {0, 3}, 1);
    world.submit_all(sum_of("complete"));
    world.deliver_all();
    for (const int rank : {0, 2, 5}) world.submit(rank, sum_of("half"));
    world.submit(4, sum_of("given up"));
    world.submit(4, about(Kind::kLeave, ""));
    world.deliver_all();
    world.submit(3, sum_of("later"));
    for (const int rank : {0, 3}) world.submit(rank, in_set(sum_of("without"), 1));
    world.deliver_all();
    for (int rank = 0; rank < 6; ++rank) {
      CAPTURE(rank);
      std::map<std::string, Status> by_name;
      for (const Response& response : world.responses(rank)) {
        if (response.kind != Kind::kLeave) {
          by_name[response.names.at(0)] = response.status;
          continue;
        }
        CHECK(response.rank == 4);
        CHECK(response.status.is_ok() == (rank != 4));
      }
      CHECK(by_name.at("complete").is_ok());
      CHECK(by_name.count("half") == (rank % 5 == 0 || rank == 2 ? 1 : 0));
      CHECK(by_name.count("given up") == (rank == 4 ? 1 : 0));
      CHECK(by_name.count("later") == (rank == 3 ? 1 : 0));
      CHECK(by_name.count("without") == (rank % 3 == 0 ? 1 : 0));
      for (const auto& [name, status] : by_name) {
        if (name == "complete" || name == "without") continue;
        CHECK(status.code == Code::kShutdown);
        CHECK(status.rank == 4);
        CHECK(status.message.find("Horovod has been shut down.") == 0);
        CHECK(status.message.find("Rank 4") != std::string::npos);
      }
    }
    world.submit(0, about(Kind::kLeave, ""));  // because of rank 4: that one stays the reason
    world.deliver_all();
    for (const int rank : {0, 1, 2, 3, 5}) {
      const Response received = only_response(world, rank);
      CHECK(received.kind == Kind::kLeave);
      CHECK(received.status.rank == 4);
      CHECK(received.status.code == Code::kShutdown);
    }
  }
}

TEST_CASE("a rank that exits without a message, and one whose parent in the tree is gone") {
  World world(7, tree_of(2));  // 0: 1 2; 1: 3 4; 2: 5 6
  world.submit(5, sum_of("x"));
  world.submit(0, sum_of("x"));
  world.deliver_all();
  world.at(0).peer_left(1, 0);
  for (const int rank : {3, 4}) {
    world.at(rank).peer_left(1, 0);
    world.collect(rank);
    const Response received = only_response(world, rank);
    CHECK(received.kind == Kind::kLeave);
    CHECK(received.status.code == Code::kShutdown);
    CHECK(received.status.rank == 1);
  }
  world.collect(0);
  world.submit(6, sum_of("x"));
  world.deliver_all();
  CHECK(world.responses(1).empty());
  for (const int rank : {0, 5, 6}) {
    int failed = 0;
    for (const Response& response : world.responses(rank)) {
      failed += static_cast<int>(response.status.rank == 1);
    }
    CHECK(failed == 1);
  }
}

TEST_CASE("stall: Horovod's warning names missing ranks in every period, and nothing is lost") {
  for (const int fanout : {2, 64}) {
    ControllerOptions options = tree_of(fanout);
    options.stall_warning_ns = 10 * kSecond;
    World world(7, options);
    for (const int rank : {0, 3, 5}) world.submit(rank, sum_of("x"));
    world.deliver_all();
    world.pass(4 * kSecond);
    CHECK(world.warnings.empty());
    world.pass(2 * kSecond);  // the ranks between say what they know
    world.pass(10 * kSecond);
    REQUIRE(world.warnings.size() == 1);
    CHECK(world.warnings[0].find("One or more tensors were submitted to be reduced, gathered or "
                                 "broadcasted by subset of ranks and are waiting for remainder of "
                                 "ranks for more than 10 seconds.") == 0);
    CHECK(world.warnings[0].find("\nMissing ranks:\n1: [x]\n2: [x]\n4: [x]\n6: [x]\nWaiting ranks:"
                                 "\nx: ranks 0, 3, 5 for 16 s") != std::string::npos);
    world.pass(9 * kSecond);
    CHECK(world.warnings.size() == 1);
    world.pass(1 * kSecond);
    CHECK(world.warnings.size() == 2);
    for (const int rank : {1, 2, 4, 6}) world.submit(rank, sum_of("x"));
    CHECK(answer(world).status.is_ok());
    CHECK(world.at(0).due_in(world.now) < 0);
  }
}

TEST_CASE(
    "stall: an operation that waits too long fails for waiting ranks, and at once for late ones") {
  for (const int fanout : {2, 64}) {
    ControllerOptions options = tree_of(fanout);
    options.stall_warning_ns = 10 * kSecond;
    options.stall_shutdown_ns = 20 * kSecond;
    World world(7, options);
    for (const int rank : {0, 3, 5}) world.submit(rank, sum_of("x"));
    world.deliver_all();
    world.pass(6 * kSecond);
    world.pass(14 * kSecond);
    for (const int rank : {0, 3, 5}) {
      const Response received = only_response(world, rank);
      CHECK(received.status.code == Code::kStalled);
      CHECK(received.status.rank == 1);
      CHECK(received.status.message.find("ranks 1, 2, 4, 6, which did not request it") !=
            std::string::npos);
      CHECK(world.at(rank).idle());
    }
    world.submit(5, sum_of("x"));  // a new attempt
    for (const int rank : {1, 6, 2, 4}) {
      world.submit(rank, sum_of("x"));
      world.deliver_all();
      CHECK(only_response(world, rank).status.code == Code::kStalled);
      CHECK(world.responses(5).empty());
    }
    for (const int rank : {0, 1, 2, 3, 4, 6}) world.submit(rank, sum_of("x"));
    CHECK(answer(world).status.is_ok());
    for (int rank = 0; rank < 7; ++rank) CHECK(world.at(rank).idle());
  }
}

TEST_CASE("stall: the time of a rank at a prompt does not count") {
  for (const int fanout : {2, 64}) {
    for (const int failing : {0, 6}) {  // rank 0 itself, and one whose parent tells of it
      ControllerOptions options = tree_of(fanout);
      options.stall_warning_ns = 10 * kSecond;
      options.stall_shutdown_ns = 20 * kSecond;
      World world(7, options);
      world.submit(failing, about(Kind::kPark, "", {1}));
      for (int rank = 0; rank < 7; ++rank) {
        if (rank != failing) world.submit(rank, sum_of("x"));
      }
      world.deliver_all();
      for (int i = 0; i < 50; ++i) world.pass(10 * kSecond);
      for (int rank = 0; rank < 7; ++rank) CHECK(world.responses(rank).empty());
      world.submit(failing, about(Kind::kPark, "", {0}));
      world.deliver_all();
      world.pass(19 * kSecond);
      CHECK(world.responses(1).empty());
      world.pass(kSecond);
      for (int rank = 0; rank < 7; ++rank) {
        if (rank == failing) continue;
        const Response received = only_response(world, rank);
        CHECK(received.status.code == Code::kStalled);
        CHECK(received.status.rank == failing);
      }
    }
  }
}

TEST_CASE("stall: a join may wait without limit, and without the check nothing is due") {
  ControllerOptions options;
  options.stall_warning_ns = kSecond;
  options.stall_shutdown_ns = kSecond;
  World world(2, options);
  world.submit(1, about(Kind::kJoin, "join"));
  world.deliver_all();
  world.pass(100 * kSecond);
  CHECK(world.warnings.empty());
  options.stall_warning_ns = 0;
  World unchecked(2, options);
  unchecked.submit(1, sum_of("x"));
  unchecked.deliver_all();
  CHECK(unchecked.at(0).due_in(0) < 0);
  REQUIRE(unchecked.warnings.size() == 1);
  CHECK(unchecked.warnings[0].find("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is ignored") == 0);
}

TEST_CASE("the error for an invalid or unexpected message names its sender") {
  Controller zero(0, 3, {}), one(1, 3, {});
  CHECK(zero.receive(2, "nonsense", 0).rank == 2);
  CHECK(zero.receive(2, "nonsense", 0).message.find("(message of rank 2)") != std::string::npos);
  CHECK_FALSE(one.receive(2, "nonsense", 0).is_ok());
  CHECK_FALSE(one.receive(0, "nonsense", 0).is_ok());
  CHECK_FALSE(one.receive(-1, "", 0).is_ok());
}

}  // namespace hvd::test
