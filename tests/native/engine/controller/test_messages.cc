// Messages between two ranks and probes for them, on rank 0 and in a tree.
#include <doctest/doctest.h>

#include "engine/controller/stall.h"
#include "engine/controller/world.h"

namespace hvd::test {
namespace {

Request send(int source, int destination, const std::string& name, std::int64_t tag = 0,
             int size = 4, std::vector<std::int64_t> shape = {4}) {
  Request request = send_request(source, destination, tag, size);
  request.name = name;
  request.tensors = sum_of(name, std::move(shape)).tensors;
  return request;
}

Request probe(const std::string& name, std::int64_t tag = 0) {
  Request request = probe_request(tag);
  request.name = name;
  return request;
}

ControllerOptions tree_of(int fanout) {
  ControllerOptions options;
  options.fanout = fanout;
  return options;
}

}  // namespace

TEST_CASE("pairs: an id for every two different ranks, and back") {
  for (const int size : {2, 3, 17}) {
    for (int a = 0; a < size; ++a) {
      CHECK(pair_id(a, a, size) == -1);
      for (int b = 0; b < a; ++b) {
        CHECK(pair_id(a, b, size) == pair_id(b, a, size));
        const auto pair = pair_of(pair_id(a, b, size), size);
        REQUIRE(pair.has_value());
        CHECK(pair->low == b);
        CHECK(pair->high == a);
      }
    }
    CHECK(pair_id(0, size, size) == -1);
    CHECK(pair_id(-1, 0, size) == -1);
    for (const int id : {-1, 0, kFirstPair - 1, kFirstPair, kFirstPair + size * size}) {
      CHECK(!pair_of(id, size).has_value());
    }
  }
  const int most = kMostRanksWithPairs;
  CHECK(pair_of(pair_id(most - 2, most - 1, most), most)->high == most - 1);
  CHECK(pair_id(0, 1, most + 1) == -1);
}

TEST_CASE("messages: only the two ranks receive the response") {
  for (const int fanout : {1, 2, 8}) {
    World world(4, tree_of(fanout));
    world.submit(3, send(1, 3, "m"));
    world.deliver_all();
    for (int rank = 0; rank < 4; ++rank) CHECK(world.responses(rank).empty());
    world.submit(1, send(1, 3, "m"));
    world.deliver_all();
    for (const int rank : {1, 3}) {
      const Response response = only_response(world, rank);
      CHECK(response.status.is_ok());
      CHECK(response.kind == Kind::kSend);
      CHECK(response.set == pair_id(1, 3, 4));
    }
    for (const int rank : {0, 2}) CHECK(world.responses(rank).empty());
    for (int rank = 0; rank < 4; ++rank) CHECK(world.at(rank).idle());
  }
}

TEST_CASE("messages: different shapes fail on both ranks, and name the ranks") {
  World world(4);
  world.submit(2, send(2, 0, "m"));
  world.submit(0, send(2, 0, "m", 0, 4, {5}));
  world.deliver_all();
  for (const int rank : {0, 2}) {
    const Response response = only_response(world, rank);
    CHECK(response.status.code == Code::kMismatch);
    CHECK(response.status.message.find("(rank 0: [5]; rank 2: [4])") != std::string::npos);
  }
}

TEST_CASE("probes: each returns a sender whose message no rank receives yet") {
  for (const int fanout : {1, 2, 8}) {
    World world(4, tree_of(fanout));
    world.submit(2, probe("p", 7));
    world.submit(1, send(1, 2, "m", 6));
    world.submit(3, send(3, 1, "n", 7));
    world.deliver_all();
    CHECK(world.responses(2).empty());
    world.submit(3, send(3, 2, "o", 7));
    world.deliver_all();
    const Response response = only_response(world, 2);
    CHECK(response.status.is_ok());
    CHECK(response.kind == Kind::kProbe);
    CHECK(response.names == std::vector<std::string>{"p"});
    CHECK(response.rank == 3);
    // The same message is not returned twice, nor one that is being received.
    world.submit(2, probe("q", 7));
    world.submit(2, send(1, 2, "later", 7));
    world.deliver_all();
    world.submit(1, send(1, 2, "later", 7));
    world.deliver_all();
    CHECK(only_response(world, 2).names == std::vector<std::string>{"later"});
    world.submit(0, send(0, 2, "last", 7));
    world.deliver_all();
    CHECK(only_response(world, 2).rank == 0);
  }
}

TEST_CASE("probes: a probe after the message is answered at once") {
  World world(3);
  world.submit(2, send(2, 0, "m", 1, 3));
  world.deliver_all();
  world.submit(0, probe("p", 1));
  world.deliver_all();
  CHECK(only_response(world, 0).rank == 2);
  world.submit(0, send(2, 0, "m", 1, 3));
  world.deliver_all();
  for (const int rank : {0, 2}) CHECK(only_response(world, rank).status.is_ok());
}

TEST_CASE("messages and probes fail when a rank leaves") {
  World world(3);
  world.submit(1, probe("p"));
  world.submit(0, send(0, 2, "m", 0, 3));
  world.deliver_all();
  world.submit(2, about(Kind::kLeave, ""));
  world.deliver_all();
  for (const int rank : {0, 1}) {
    const std::vector<Response> responses = world.responses(rank);
    REQUIRE(responses.size() == 2);  // and that it left
    CHECK(responses.front().status.code == Code::kShutdown);
  }
}

TEST_CASE("messages: a rank that does not request one is named as missing") {
  ControllerOptions options;
  options.stall_warning_ns = 1'000'000'000;
  World world(3, options);
  world.submit(0, send(0, 2, "m", 0, 3));
  world.deliver_all();
  world.pass(1'500'000'000);
  REQUIRE(world.warnings.size() == 1);
  CHECK(world.warnings.front().find("\n2: [m]") != std::string::npos);
  CHECK(world.warnings.front().find("\nm: rank 0 for 1.5 s") != std::string::npos);
}

TEST_CASE("messages: two ranks that both send first get an error with the remedy") {
  World world(2);
  const std::vector<Request> sends{send(0, 1, "m", 0, 2), send(1, 0, "n", 0, 2)};
  for (int rank = 0; rank < 2; ++rank) world.submit(rank, sends[static_cast<std::size_t>(rank)]);
  world.deliver_all();
  for (int rank = 0; rank < 2; ++rank) {
    const Request& own = sends[static_cast<std::size_t>(rank)];
    world.submit(rank, request_of(Blocked{world.now, {{own.set, own.name}}, {}, 0, ""}));
    world.deliver_all();
  }
  for (int rank = 0; rank < 2; ++rank) {
    const Status status = only_response(world, rank).status;
    CHECK(status.code == Code::kMismatch);
    CHECK(status.message.find("rank 0 for SEND m; rank 1 for SEND n. A send completes when") !=
          std::string::npos);
  }
}

TEST_CASE("probes: a deadlock is proven only when no other rank can send") {
  World world(3);
  const auto block = [&](int rank, NamesInSets waits) {
    world.submit(rank, request_of(Blocked{world.now, std::move(waits), {}, 0, ""}));
    world.deliver_all();
  };
  world.submit(0, probe("p"));
  world.submit(1, sum_of("a"));
  world.deliver_all();
  block(0, {{0, "p"}});
  block(1, {{0, "a"}});
  for (int rank = 0; rank < 3; ++rank) CHECK(world.responses(rank).empty());
  world.submit(2, sum_of("b"));
  world.deliver_all();
  block(2, {{0, "b"}});
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(only_response(world, rank).status.code == Code::kMismatch);
  }
}

}  // namespace hvd::test
