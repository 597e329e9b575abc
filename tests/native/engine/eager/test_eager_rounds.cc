// Ranks that wait for the same sum send its data and ask nobody: what they do when one of them does
// something else.
#include <doctest/doctest.h>

#include "engine/eager/eager_world.h"

namespace hvd::test {
namespace {

using Done = std::vector<std::string>;
using Event = EagerWorld::Event;

void exchange(EagerWorld& world) {
  for (bool any = true; any;) {
    any = false;
    for (const Event& event : world.events()) {
      if (event.what != Event::What::kData) continue;
      world.happen(event);
      any = true;
      break;
    }
  }
}

}  // namespace

TEST_CASE("an eager round: the data are the agreement, without further messages") {
  for (const int size : {2, 3, 8}) {
    EagerWorld world(std::vector<Script>(static_cast<std::size_t>(size), {waits("x"), waits("x")}));
    for (int rank = 0; rank < size; ++rank) world.call(rank);
    exchange(world);  // and nothing else
    for (int rank = 0; rank < size; ++rank) CHECK(world.done(rank) == Done{"x"});
    // Each rank but rank 0 has notified rank 0, which does not answer, also to a late message.
    CHECK(world.letters == static_cast<std::size_t>(size - 1));
    world.deliver_all();
    CHECK(world.letters == static_cast<std::size_t>(size - 1));
    CHECK(world.at(0).idle());
    world.settle();
    for (int rank = 0; rank < size; ++rank) CHECK(world.done(rank) == Done{"x", "x"});
    CHECK(world.letters == 2 * static_cast<std::size_t>(size - 1));
    CHECK(world.wrong == "");
  }
}

TEST_CASE("an eager round: a late rank finds the data of the other ranks") {
  for (const int late : {0, 1, 2}) {
    EagerWorld world(std::vector<Script>(3, {waits("x")}));
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != late) world.call(rank);
    }
    world.deliver_all();
    for (int rank = 0; rank < 3; ++rank) CHECK(world.done(rank).empty());
    world.call(late);
    CHECK(world.done(late) == Done{"x"});
    world.deliver_all();
    for (int rank = 0; rank < 3; ++rank) CHECK(world.done(rank) == Done{"x"});
  }
}

TEST_CASE("an eager round is cancelled if a rank requests another operation, and all ask rank 0") {
  for (const int other : {0, 1}) {
    std::vector<Script> scripts(2, {waits("x"), waits("y"), waits("x")});
    scripts[static_cast<std::size_t>(other)] = {goes_on("y"), waits("x"), waits("x")};
    EagerWorld world(scripts);
    world.settle();
    CHECK(world.over());
    CHECK(world.done(0) == world.done(1));
    CHECK(world.wrong == "");
  }
}

TEST_CASE("an eager round is cancelled if two ranks have sent data of different sums") {
  EagerWorld world({{waits("x")}, {waits("y")}});
  world.call(0);
  world.call(1);
  world.deliver_all();
  CHECK(world.done(0).empty());
  CHECK(world.at(0).waiting().size() == 2);  // each waits for the other, as without rounds
  world.submit(0, "y");
  world.submit(1, "x");
  world.deliver_all();
  CHECK(world.done(0) == world.done(1));
  CHECK(world.done(0).size() == 2);
  CHECK(world.wrong == "");
}

TEST_CASE("an eager round that another thread's call overtakes ends by its end message") {
  // Rank 0 is bound; rank 1 comes later.
  EagerWorld world({{waits("x")}, {waits("x")}});
  world.call(0);
  world.submit(0, "y");
  world.deliver_all();  // void, and rank 1's promise
  CHECK(world.letters == 2);
  world.call(1);
  world.submit(1, "y");
  world.deliver_all();
  CHECK(world.done(0) == world.done(1));
  CHECK(world.done(0).size() == 2);
  CHECK(std::count(world.done(0).begin(), world.done(0).end(), "(x)") == 1);
}

TEST_CASE("an eager round: data that cross the end message count") {
  EagerWorld world({{waits("x")}, {waits("x")}});
  world.call(0);
  world.submit(0, "y");  // void is on its way
  world.call(1);
  exchange(world);
  CHECK(world.done(0) == Done{"x"});
  CHECK(world.done(1) == Done{"x"});
  world.deliver_all();
  world.submit(1, "y");
  world.deliver_all();
  CHECK(world.done(0) == Done{"x", "(y)"});
  CHECK(world.done(1) == Done{"x", "(y)"});
  CHECK(world.wrong == "");
}

TEST_CASE("an eager round: rank 0 does not wait without limit for a rank that computes") {
  EagerWorld world({{waits("x")}, {waits("x")}});
  world.call(0);
  world.deliver_all();
  CHECK(world.at(0).due_in(world.now) == 100'000'000);
  CHECK(world.at(0).waiting().at(0).missing == std::vector<int>{1});
  world.pass(100'000'000);
  world.deliver_all();
  world.call(1);
  world.deliver_all();
  CHECK(world.done(0) == Done{"(x)"});
  CHECK(world.done(1) == Done{"(x)"});
}

TEST_CASE("an eager round that stalls fails like any request, and the next call sends new data") {
  constexpr std::int64_t kSecond = 1'000'000'000;
  ControllerOptions options;
  options.stall_warning_ns = kSecond;
  options.stall_shutdown_ns = 2 * kSecond;
  EagerWorld world(std::vector<Script>(3, {waits("x"), waits("x")}), options);
  world.call(0);
  world.call(1);
  for (int tenth = 0; tenth < 35; ++tenth) {
    world.deliver_all();
    world.pass(kSecond / 10);
  }
  world.deliver_all();
  CHECK(world.done(0) == Done{"x!"});
  CHECK(world.done(1) == Done{"x!"});
  world.call(0);  // the data of the first calls lie at rank 2 still
  world.call(1);
  world.call(2);
  world.deliver_all();
  CHECK(world.done(2) == Done{"x!"});  // whose error says that it was late
  world.call(2);
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) CHECK(world.done(rank) == Done{"x!", "(x)"});
  CHECK(world.wrong == "");
}

TEST_CASE("an eager round: does not wait for a rank that leaves; what it completed is complete") {
  EagerWorld world({{waits("x")}, {waits("x"), leaves()}, {waits("x")}});
  for (int rank = 0; rank < 3; ++rank) world.call(rank);
  world.data(0, 1);
  world.data(2, 1);
  CHECK(world.done(1) == Done{"x"});
  world.call(1);  // leaves, while the others have not its data
  world.message(1, 0);
  world.message(1, 0);
  CHECK(world.done(0).empty());
  world.deliver_all();
  CHECK(world.done(0) == Done{"x"});
  CHECK(world.done(2) == Done{"x"});
  CHECK(world.wrong == "");
}

TEST_CASE("an eager round: a rank that leaves fails the sums in which it takes no part") {
  EagerWorld world({{waits("x")}, {leaves()}, {waits("x")}});
  world.call(0);
  world.call(2);
  world.call(1);
  world.deliver_all();
  CHECK(world.done(0) == Done{"x!"});
  CHECK(world.done(2) == Done{"x!"});
}

TEST_CASE("an eager round: a rank receives later responses after it has completed the round") {
  EagerWorld world({{waits("x"), leaves()}, {waits("x")}, {waits("x")}});
  for (int rank = 0; rank < 3; ++rank) world.call(rank);
  world.data(1, 0);
  world.data(2, 0);
  CHECK(world.done(0) == Done{"x"});
  world.call(0);  // leaves, which ends everybody
  world.message(0, 1);
  CHECK(world.done(1).empty());
  CHECK(world.waits_for(1, "x"));
  world.deliver_all();
  CHECK(world.done(1) == Done{"x"});
  CHECK(world.done(2) == Done{"x"});
}

TEST_CASE("eager rounds: ranks that miss each other try less often, and meet again") {
  std::vector<Script> scripts(2);
  for (int call = 0; call < 40; ++call) {
    scripts[0].push_back(waits("x"));
    scripts[1].push_back(call < 20 ? goes_on("x") : waits("x"));
  }
  EagerWorld world(scripts);
  world.settle();
  CHECK(world.over());
  CHECK(world.done(0) == world.done(1));
  const Done& done = world.done(0);
  CHECK(std::count(done.begin(), done.begin() + 20, "x") == 0);
  CHECK(std::count(done.begin() + 20, done.end(), "x") > 0);
  CHECK(world.wrong == "");
}

TEST_CASE("eager rounds: new operations and process sets use the normal path") {
  EagerWorld world(std::vector<Script>(2, {waits("z"), waits("z")}));
  world.settle();
  CHECK(world.done(0) == Done{"(z)", "z"});
  for (int rank = 0; rank < 2; ++rank) {
    world.at(rank).submit(about(Kind::kAddSet, "add", {0}), 0);
  }
  for (int rank = 0; rank < 2; ++rank) CHECK_FALSE(world.at(rank).submit_eagerly(sum_of("z"), 0));
}

}  // namespace hvd::test
