// Requests on devices that rank 0 holds while one is in flight there: whom it holds, and what ends
// it, through the agreement of several ranks.
#include <doctest/doctest.h>

#include "engine/controller/world.h"

namespace hvd::test {
namespace {

Request on_a_device(const std::string& name, int set = 0) {
  Request request = in_set(sum_of(name), set);
  request.tensors[0].device = 0;
  return request;
}

// Rank 0's device is busy from now on.
void make_busy(World& world, bool awaited = false) {
  world.at(0).in_flight({1, world.now, awaited});
}

std::vector<std::vector<std::string>> names_told(World& world, int rank) {
  std::vector<std::vector<std::string>> all;
  for (const Response& response : world.responses(rank)) all.push_back(response.names);
  return all;
}

using Names = std::vector<std::vector<std::string>>;

}  // namespace

TEST_CASE("held: operations for a busy device start as one on every rank when it is idle") {
  World world(3);
  make_busy(world);
  for (const char* name : {"a", "b", "c"}) world.submit_all(on_a_device(name));
  world.deliver_all();
  CHECK(world.at(0).holds_on_devices());
  for (int rank = 0; rank < 3; ++rank) CHECK(names_told(world, rank).empty());
  CHECK(world.at(0).due_in(world.now) == 100'000);
  world.at(0).in_flight({});
  world.pass(100'000);
  for (int rank = 0; rank < 3; ++rank) CHECK(names_told(world, rank) == Names{{"a", "b", "c"}});
  CHECK(world.at(0).due_in(world.now) < 0);
  // The same by the cache's numbers.
  make_busy(world);
  for (const char* name : {"a", "b", "c"}) world.submit_all(on_a_device(name));
  world.deliver_all();
  CHECK(names_told(world, 2).empty());
  world.at(0).in_flight({});
  world.pass(0);
  for (int rank = 0; rank < 3; ++rank) CHECK(names_told(world, rank) == Names{{"a", "b", "c"}});
}

TEST_CASE("held: its cache slot is not evicted while other names need slots") {
  ControllerOptions options;
  options.cache_capacity = 2;
  World world(2, options);
  const auto on_host = [&](const std::string& name) {
    world.submit_all(sum_of(name));
    world.deliver_all();
    for (int rank = 0; rank < 2; ++rank) CHECK(names_told(world, rank) == Names{{name}});
  };
  world.submit_all(on_a_device("x"));
  world.deliver_all();
  for (int rank = 0; rank < 2; ++rank) CHECK(names_told(world, rank) == Names{{"x"}});
  make_busy(world);
  world.submit_all(on_a_device("x"));
  world.deliver_all();
  for (const char* name : {"a", "b", "c"}) on_host(name);
  world.at(0).in_flight({});
  world.pass(0);
  for (int rank = 0; rank < 2; ++rank) CHECK(names_told(world, rank) == Names{{"x"}});
}

TEST_CASE("held: a waiting caller releases it, unless a rank has more to request") {
  World world(2);
  make_busy(world);
  world.submit_all(on_a_device("a"));
  world.submit(1, on_a_device("b"));
  world.deliver_all();
  make_busy(world, true);
  world.pass(0);
  CHECK(names_told(world, 1).empty());  // b is on its way
  world.submit(0, on_a_device("b"));
  make_busy(world, true);
  world.pass(0);
  for (int rank = 0; rank < 2; ++rank) CHECK(names_told(world, rank) == Names{{"a", "b"}});
}

TEST_CASE("held: a set without rank 0 is not held, and one with rank 0 is") {
  World world(3);
  world.submit_all(about(Kind::kAddSet, "others", {1, 2}));
  world.submit_all(about(Kind::kAddSet, "mine", {0, 2}));
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) CHECK(world.responses(rank).size() == 2);
  make_busy(world);
  for (const int rank : {1, 2}) world.submit(rank, on_a_device("x", 1));
  for (const int rank : {0, 2}) world.submit(rank, on_a_device("x", 2));
  world.deliver_all();
  CHECK(names_told(world, 1) == Names{{"x"}});
  CHECK(only_response(world, 2).set == 1);
  CHECK(world.at(0).holds_on_devices());
  world.at(0).in_flight({});
  world.pass(0);
  CHECK(only_response(world, 0).set == 2);
  CHECK(only_response(world, 2).set == 2);
}

TEST_CASE("held: released before a join completes, a set changes, or a rank leaves") {
  for (const Kind kind : {Kind::kJoin, Kind::kAddSet, Kind::kLeave}) {
    CAPTURE(name_of(kind));
    World world(2);
    make_busy(world);
    world.submit_all(on_a_device("a"));
    world.deliver_all();
    CHECK(names_told(world, 1).empty());
    if (kind == Kind::kLeave) {
      world.submit(1, about(kind, ""));
    } else {
      world.submit_all(kind == Kind::kJoin ? about(kind, "x") : about(kind, "x", {0}));
    }
    world.deliver_all();
    CHECK_FALSE(world.at(0).holds_on_devices());
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<Response> received = world.responses(rank);
      REQUIRE(received.size() == 2);
      CHECK(received[0].names == std::vector<std::string>{"a"});
      CHECK(received[0].status.is_ok());
      CHECK(received[1].kind == kind);
    }
  }
}

}  // namespace hvd::test
