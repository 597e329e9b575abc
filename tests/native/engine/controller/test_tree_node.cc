// What the tree is for: rank 0 hears of few, and each of them sends for many.
#include <doctest/doctest.h>

#include "engine/controller/world.h"
#include "engine/message/rank_set.h"
#include "engine/message/wire.h"

namespace hvd::test {
namespace {

ControllerOptions tree_of(int fanout) {
  ControllerOptions options;
  options.fanout = fanout;
  return options;
}

// The requests in the only letter to `to`.
RequestList asks_to(const News& news, int to) {
  REQUIRE(news.outgoing.size() == 1);
  CHECK(news.outgoing[0].to == to);
  const Result<RequestList> requests = decode_requests(news.outgoing[0].bytes);
  REQUIRE(requests.is_ok());
  return requests.value();
}

void hand(Controller& from, int rank, Controller& to) {
  for (const OutgoingMessage& outgoing : from.poll(0).outgoing)
    CHECK(to.receive(rank, outgoing.bytes, 0).is_ok());
}

}  // namespace

TEST_CASE("the tree: every rank has one path to rank 0, and subtrees are disjoint") {
  for (const int size : {1, 2, 7, 64, 200}) {
    for (const int fanout : {1, 2, 3, 64}) {
      std::vector<int> seen(static_cast<std::size_t>(size), 0);
      for (int rank = 0; rank < size; ++rank) {
        const Subtree tree(rank, size, fanout);
        RankSet all;
        all.add(tree.own_number());
        for (int place = 0; place < tree.children(); ++place) {
          CHECK_FALSE(all.meets(tree.below(place)));
          all.add(tree.below(place));
          CHECK(tree.place_of(tree.child(place)) == place);
          CHECK(tree.is_leaf(place) == (tree.below(place).count() == 1));
          ++seen[static_cast<std::size_t>(tree.child(place))];
        }
        CHECK(all.count() == tree.count());
        for (const int number : all.numbers()) {
          CHECK(tree.number_of(tree.rank_of(number)) == number);
          CHECK((tree.rank_of(number) == rank || tree.leads_through(tree.rank_of(number), rank)));
        }
      }
      for (int rank = 1; rank < size; ++rank) CHECK(seen[static_cast<std::size_t>(rank)] == 1);
    }
  }
}

TEST_CASE("a tree node sends once for its whole subtree") {
  // 0: 1 2; 1: 3 4
  Controller tree_node(1, 5, tree_of(2)), three(3, 5, tree_of(2)), four(4, 5, tree_of(2));
  three.submit(sum_of("x"), 0);
  tree_node.submit(sum_of("x"), 0);
  hand(three, 3, tree_node);
  CHECK(tree_node.poll(0).outgoing.empty());
  CHECK(tree_node.waiting().at(0).missing == std::vector<int>{4});
  four.submit(sum_of("x"), 0);
  hand(four, 4, tree_node);
  const RequestList requests = asks_to(tree_node.poll(0), 0);
  REQUIRE(requests.full.size() == 1);
  CHECK(requests.full[0].ranks.empty());  // all of us
}

TEST_CASE("a tree node forwards different requests with the ranks that make them") {
  Controller tree_node(1, 5, tree_of(2)), three(3, 5, tree_of(2)), four(4, 5, tree_of(2));
  three.submit(of_kind(Kind::kAllgather, "x", {3}), 0);
  four.submit(of_kind(Kind::kAllgather, "x", {4}), 0);
  tree_node.submit(of_kind(Kind::kAllgather, "x", {3}), 0);
  hand(three, 3, tree_node);
  hand(four, 4, tree_node);
  const RequestList requests = asks_to(tree_node.poll(0), 0);
  REQUIRE(requests.full.size() == 2);
  CHECK(requests.full[0].request.tensors.at(0).shape.at(0) == 3);
  CHECK(requests.full[0].ranks == std::vector<int>{1, 3});
  CHECK(requests.full[1].ranks == std::vector<int>{4});
}

TEST_CASE("a tree node sets a bit when all ranks below have set theirs") {
  World world(7, tree_of(2));
  world.submit_all(sum_of("x"));
  world.deliver_all();
  world.outgoing();
  world.submit_all(sum_of("x"));
  world.deliver_all();
  CHECK(world.outgoing() == 12);  // one up and one down for each of six edges
  for (int rank = 0; rank < 7; ++rank) CHECK(world.responses(rank).size() == 2);
}

TEST_CASE("a subtree without members receives no messages of a set") {
  World world(7, tree_of(2));  // 1: 3 4, 2: 5 6
  world.submit_all(about(Kind::kAddSet, "add", {2, 5}));
  world.deliver_all();
  world.outgoing();
  for (const int rank : {2, 5}) world.submit(rank, in_set(sum_of("x"), 1));
  world.deliver_all();
  CHECK(world.outgoing() == 4);  // 5 to 2, 2 to 0, 0 to 2, 2 to 5
}

TEST_CASE(
    "requests of only some ranks of a subtree are forwarded before the warning, or when a rank "
    "leaves") {
  ControllerOptions options = tree_of(2);
  options.stall_warning_ns = 100;
  Controller tree_node(1, 5, options);
  tree_node.submit(sum_of("x"), 0);
  CHECK(tree_node.poll(10).outgoing.empty());
  CHECK(tree_node.due_in(10) == 40);
  CHECK(asks_to(tree_node.poll(50), 0).full.at(0).ranks == std::vector<int>{1});
  CHECK(tree_node.due_in(50) < 0);
  tree_node.submit(sum_of("y"), 60);
  CHECK(tree_node.poll(60).outgoing.empty());
  tree_node.peer_left(3, 61);
  const RequestList requests = asks_to(tree_node.poll(61), 0);
  REQUIRE(requests.full.size() == 2);
  CHECK(requests.full[0].request.name == "y");
  CHECK(requests.full[1].request.kind == Kind::kLeave);
  CHECK(requests.full[1].ranks == std::vector<int>{3});
  tree_node.submit(sum_of("z"), 62);
  CHECK(asks_to(tree_node.poll(62), 0).full.at(0).request.name == "z");
}

TEST_CASE("a tree node refuses requests of ranks that are not below it") {
  Controller tree_node(1, 5, tree_of(2));
  RequestList requests;
  requests.full = {{sum_of("x"), {2}}};
  CHECK(tree_node.receive(3, encode(requests), 0).rank == 3);
  requests.full = {{sum_of("x"), {4}}};
  CHECK_FALSE(tree_node.receive(3, encode(requests), 0).is_ok());
  requests.full = {{sum_of("x"), {3}}};
  CHECK(tree_node.receive(3, encode(requests), 0).is_ok());
}

}  // namespace hvd::test
