// What was agreed on before costs a bit, and never means anything else than what was meant.
#include <doctest/doctest.h>

#include "engine/controller/response_cache.h"
#include "engine/controller/world.h"
#include "engine/message/wire.h"

namespace hvd::test {
namespace {

void agree_on(World& world, const std::vector<Request>& requests) {
  for (const Request& request : requests) world.submit_all(request);
  world.deliver_all();
  for (int rank = 0; rank < world.size(); ++rank) {
    std::size_t names = 0;
    for (const Response& response : world.responses(rank)) {
      CHECK(response.status.is_ok());
      names += response.names.size();
    }
    CHECK(names == requests.size());
  }
}

// The bytes that this costs.
std::size_t cost(World& world, const Request& request) {
  world.bytes();
  agree_on(world, {request});
  return world.bytes();
}

ControllerOptions with_capacity(std::size_t capacity) {
  ControllerOptions options;
  options.cache_capacity = capacity;
  return options;
}

}  // namespace

TEST_CASE("cache: slots are assigned in order, and the least recently used is evicted first") {
  CacheLru order(3);
  order.begin_round();
  CHECK(order.allocate() == 0);
  CHECK(order.allocate() == 1);
  CHECK(order.allocate() == 2);
  CHECK(order.allocate() == -1);  // all of them are of this round
  CHECK_FALSE(order.was_full());
  order.begin_round();
  order.touch(0);
  CHECK(order.allocate() == 1);
  CHECK(order.was_full());
  CHECK(order.allocate() == 2);
  CHECK(order.allocate() == -1);
  order.free(1);
  CHECK(order.allocate() == 1);
  order.begin_round();
  CHECK(order.allocate() == 0);
  CacheLru none(0);
  none.begin_round();
  CHECK(none.allocate() == -1);
}

TEST_CASE("cache: an agreement takes a few bytes from the second time, for any name") {
  World world(2);
  const Request request = sum_of(std::string(300, 'x'), {1, 2, 3, 4});
  const std::size_t first = cost(world, request);
  CHECK(first > 600);
  const std::size_t second = cost(world, request);
  CHECK(second < 64);
  CHECK(cost(world, request) == second);
  CHECK(cost(world, sum_of("y")) > second);
}

TEST_CASE("cache: a size of 0 disables it") {
  World world(2, with_capacity(0));
  const std::size_t first = cost(world, sum_of("x"));
  CHECK(cost(world, sum_of("x")) == first);
}

TEST_CASE("cache: names that are used once are not kept") {
  World world(2, with_capacity(1));
  cost(world, sum_of("x"));
  const std::size_t known = cost(world, sum_of("x"));
  for (int i = 0; i < 5; ++i) cost(world, sum_of("allreduce.noname." + std::to_string(i)));
  CHECK(cost(world, sum_of("x")) == known);
  CHECK(world.warnings.empty());
}

TEST_CASE("cache: the oldest is evicted with one warning, and results stay correct") {
  for (const int fanout : {2, 64}) {
    ControllerOptions options = with_capacity(2);
    options.fanout = fanout;
    World world(5, options);
    for (int round = 0; round < 4; ++round) {
      for (const char* name : {"a", "b", "c"}) cost(world, sum_of(name));
    }
    REQUIRE(world.warnings.size() == 1);
    CHECK(world.warnings[0].find("More than 2 different names") == 0);
    const std::size_t full = cost(world, sum_of("a"));  // "a" had to go for "c"
    CHECK(cost(world, sum_of("a")) < full / 2);
    CHECK(cost(world, sum_of("c")) < full / 2);  // "b" went
    CHECK(cost(world, sum_of("b")) >= full);
  }
}

TEST_CASE("cache: new parameters on all ranks replace the old ones") {
  World world(3);
  for (const std::int64_t rows : {4, 4, 9, 9, 4}) {
    world.submit_all(sum_of("x", {rows}));
    world.deliver_all();
    for (int rank = 0; rank < 3; ++rank) CHECK(only_response(world, rank).status.is_ok());
  }
}

TEST_CASE("cache: new parameters on some ranks are a mismatch, and later operations succeed") {
  World world(3);
  cost(world, sum_of("x", {4}));
  const std::size_t known = cost(world, sum_of("x", {4}));
  for (int rank = 0; rank < 3; ++rank) world.submit(rank, sum_of("x", {rank == 2 ? 5 : 4}));
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) {
    const Response received = only_response(world, rank);
    CHECK(received.status.code == Code::kMismatch);
    CHECK(received.status.message.find("(ranks 0, 1: [4]; rank 2: [5])") != std::string::npos);
  }
  CHECK(cost(world, sum_of("x", {4})) == known);
  CHECK(cost(world, sum_of("x", {5})) > known);
  CHECK(cost(world, sum_of("x", {5})) == known);
}

TEST_CASE("cache: each rank's bit stands for its own request") {
  World world(3);
  const auto gather = [&](std::int64_t rows_of_two) {
    for (int rank = 0; rank < 3; ++rank) {
      world.submit(rank, of_kind(Kind::kAllgather, "x", {rank == 2 ? rows_of_two : rank, 2}));
    }
    world.deliver_all();
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(only_response(world, rank).sizes == std::vector<std::int64_t>{0, 1, rows_of_two});
    }
    return world.bytes();
  };
  gather(7);
  const std::size_t known = gather(7);
  CHECK(gather(8) > known);  // ranks 0 and 1 still asked with their bits
  CHECK(gather(8) == known);
}

TEST_CASE("cache: fused responses are one item of numbers, their sizes in order") {
  World world(2);
  const auto round = [&] {
    for (int rank = 0; rank < 2; ++rank) {
      Request two = of_kind(Kind::kAllgather, "a", {rank + 1});
      two.tensors.push_back(two.tensors[0]);
      world.at(rank).submit(two, 0);
      world.at(rank).submit(of_kind(Kind::kAllgather, "b", {rank + 5}), 0);
      world.collect(rank);
    }
    world.deliver_all();
    for (int rank = 0; rank < 2; ++rank) {
      const Response received = only_response(world, rank);
      CHECK(received.names == std::vector<std::string>{"a", "b"});
      CHECK(received.sizes == std::vector<std::int64_t>{1, 2, 1, 2, 5, 6});
    }
    return world.bytes();
  };
  const std::size_t first = round();
  CHECK(round() < first / 3);
}

TEST_CASE("cache: a bit for a slot that was reassigned is requested again in full") {
  ControllerOptions options = with_capacity(1);
  Controller zero(0, 2, options), one(1, 2, options);
  const auto carry = [](Controller& from, Controller& to, int rank) {
    News news = from.poll(0);
    for (const OutgoingMessage& outgoing : news.outgoing)
      CHECK(to.receive(rank, outgoing.bytes, 0).is_ok());
    return news.agenda;
  };
  for (Controller* controller : {&zero, &one}) controller->submit(sum_of("a"), 0);
  carry(one, zero, 1);
  carry(zero, one, 0);
  one.poll(0);
  // Rank 1 asks for "b" and, with its bit, for "a" before it hears that the slot is now "b"'s.
  one.submit(sum_of("b"), 0);
  carry(one, zero, 1);
  zero.submit(sum_of("b"), 0);
  News late = zero.poll(0);
  one.submit(sum_of("a"), 0);
  carry(one, zero, 1);
  for (const OutgoingMessage& outgoing : late.outgoing)
    CHECK(one.receive(0, outgoing.bytes, 0).is_ok());
  CHECK(one.poll(0).agenda.at(0).names == std::vector<std::string>{"b"});
  zero.submit(sum_of("a"), 0);
  CHECK(carry(zero, one, 0).empty());  // only: ask again
  CHECK(carry(one, zero, 1).empty());
  CHECK(carry(zero, one, 0).at(0).names == std::vector<std::string>{"a"});
  CHECK(one.poll(0).agenda.at(0).names == std::vector<std::string>{"a"});
  CHECK(zero.idle());
  CHECK(one.idle());
}

}  // namespace hvd::test
