// Ranks that wait for each other and report what else they may request: failed if the deadlock is
// proven, never if a rank may still request the missing operation.
#include <doctest/doctest.h>

#include "engine/controller/stall.h"
#include "engine/controller/world.h"

namespace hvd::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

ControllerOptions tree_of(int fanout) {
  ControllerOptions options;
  options.fanout = fanout;
  return options;
}

void report(World& world, int rank, NamesInSets waits, std::vector<std::string> may_request = {},
            std::int64_t run = 0, std::string place = {}) {
  world.submit(rank, request_of(Blocked{world.now, std::move(waits), std::move(may_request), run,
                                        std::move(place)}));
  world.deliver_all();
}

void end_cell(World& world, int rank, std::int64_t run) { report(world, rank, {}, {}, run); }

void resume(World& world, int rank) {
  Blocked withdrawal;
  withdrawal.resumed = true;
  world.submit(rank, request_of(withdrawal));
  world.deliver_all();
}

void check_no_error(World& world) {
  for (int rank = 0; rank < world.size(); ++rank) CHECK(world.responses(rank).empty());
}

// All ranks carry out the same.
void works_on(World& world, const std::string& name) {
  world.submit_all(sum_of(name));
  world.deliver_all();
  for (int rank = 0; rank < world.size(); ++rank) CHECK(only_response(world, rank).status.is_ok());
}

}  // namespace

TEST_CASE("deadlock: two ranks that wait for each other get an error with both operations") {
  World world(2);
  world.submit(0, sum_of("a"));
  world.submit(1, sum_of("step/b"));
  world.deliver_all();
  report(world, 0, {{0, "a"}});
  check_no_error(world);
  report(world, 1, {{0, "step/b"}});
  for (int rank = 0; rank < 2; ++rank) {
    const Response received = only_response(world, rank);
    CHECK(received.status.code == Code::kMismatch);
    CHECK(received.status.rank == 1 - rank);
    CHECK(received.names == std::vector<std::string>{rank == 0 ? "a" : "step/b"});
    CHECK(received.status.message.find("rank 0 for ALLREDUCE a; rank 1 for ALLREDUCE step/b.") !=
          std::string::npos);
  }
  works_on(world, "a");
  works_on(world, "step/b");
}

TEST_CASE("deadlock: none while a rank may still request the missing operation") {
  for (const char* part : {"a", "x/a", "step/x/a"}) {
    World world(2);
    world.submit(0, sum_of("step/x/a#3"));
    world.submit(1, sum_of("b"));
    world.deliver_all();
    report(world, 0, {{0, "step/x/a#3"}});
    report(world, 1, {{0, "b"}}, {"other", part});
    check_no_error(world);
    world.submit(1, sum_of("step/x/a#3"));
    world.deliver_all();
    for (int rank = 0; rank < 2; ++rank)
      CHECK(only_response(world, rank).names == std::vector<std::string>{"step/x/a#3"});
  }
}

TEST_CASE("deadlock: a part of a name is the text between two slashes") {
  World world(2);
  world.submit(0, sum_of("step/extra"));
  world.submit(1, sum_of("b"));
  world.deliver_all();
  report(world, 1, {{0, "b"}}, {"tra", "step"});
  report(world, 0, {{0, "step/extra"}});
  for (int rank = 0; rank < 2; ++rank)
    CHECK(only_response(world, rank).status.code == Code::kMismatch);
}

TEST_CASE("deadlock: a report is void once its rank has requested more") {
  World world(2);
  world.submit(0, sum_of("a"));
  world.submit(1, sum_of("b"));
  world.deliver_all();
  report(world, 0, {{0, "a"}});
  world.submit(0, sum_of("c"));  // from a thread that it did not know of
  world.deliver_all();
  report(world, 1, {{0, "b"}});
  check_no_error(world);
  report(world, 0, {{0, "a"}, {0, "c"}});
  report(world, 1, {{0, "b"}});
  CHECK(world.responses(0).size() == 2);
  CHECK(only_response(world, 1).status.code == Code::kMismatch);
}

TEST_CASE("deadlock: a report is void once an operation was answered and requested again") {
  World world(2);
  world.submit(0, sum_of("a"));
  world.deliver_all();
  report(world, 0, {{0, "a"}});
  world.now += kSecond;
  world.submit(1, sum_of("a"));
  world.deliver_all();
  for (int rank = 0; rank < 2; ++rank) CHECK(only_response(world, rank).status.is_ok());
  world.submit(0, sum_of("a"));
  world.submit(1, sum_of("b"));
  world.deliver_all();
  report(world, 1, {{0, "b"}});
  check_no_error(world);
}

TEST_CASE("deadlock: a report that is older than the last answer is not sent") {
  for (const int late : {0, 1}) {
    World world(2);
    const int other = 1 - late;
    const Request said = request_of(Blocked{world.now, {{0, "a"}}, {}, 0, "", false});
    world.now += kSecond;
    world.submit(late, sum_of("a"));  // asked for anew since
    world.submit(other, sum_of("b"));
    world.deliver_all();
    world.submit(late, said);
    report(world, other, {{0, "b"}});
    check_no_error(world);
  }
}

TEST_CASE("deadlock: also in a tree; ranks without a report get the error too") {
  for (const int fanout : {2, 64}) {
    for (const int reporter : {0, 1, 3, 5}) {
      World world(7, tree_of(fanout));
      for (int rank = 0; rank < 6; ++rank) world.submit(rank, sum_of("x"));
      world.submit(6, sum_of("y"));
      world.deliver_all();
      report(world, 6, {{0, "y"}});
      check_no_error(world);
      report(world, reporter, {{0, "x"}});
      for (int rank = 0; rank < 7; ++rank) {
        const Response received = only_response(world, rank);
        CHECK(received.status.code == Code::kMismatch);
        CHECK(received.status.message.find("ranks 0-5 for ALLREDUCE x; rank 6 for ALLREDUCE y.") !=
              std::string::npos);
      }
      works_on(world, "x");
    }
  }
}

TEST_CASE("deadlock: a rank that waits for one that may proceed may proceed") {
  World world(3);
  world.submit_all(about(Kind::kAddSet, "add", {1, 2}));
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) only_response(world, rank);
  world.submit(0, sum_of("a"));
  world.submit(1, in_set(sum_of("b"), 1));  // with rank 2, which computes
  world.deliver_all();
  report(world, 0, {{0, "a"}});
  report(world, 1, {{1, "b"}});
  check_no_error(world);
  world.submit(2, sum_of("c"));
  world.deliver_all();
  report(world, 2, {{0, "c"}});
  CHECK(only_response(world, 0).names == std::vector<std::string>{"a"});
  CHECK(only_response(world, 1).names == std::vector<std::string>{"b"});
  CHECK(only_response(world, 2).names == std::vector<std::string>{"c"});
}

TEST_CASE("deadlock: joined ranks are not missing, and without the stall check no rank is") {
  World world(3);
  world.submit(2, about(Kind::kJoin, "join"));
  world.submit(0, sum_of("a"));
  world.submit(1, sum_of("b"));
  world.deliver_all();
  report(world, 0, {{0, "a"}});
  report(world, 1, {{0, "b"}});
  for (int rank = 0; rank < 2; ++rank)
    CHECK(only_response(world, rank).status.code == Code::kMismatch);
  CHECK(world.responses(2).empty());

  ControllerOptions options;
  options.stall_warning_ns = 0;
  World unchecked(2, options);
  unchecked.submit(0, sum_of("a"));
  unchecked.submit(1, sum_of("b"));
  unchecked.deliver_all();
  report(unchecked, 0, {{0, "a"}});
  report(unchecked, 1, {{0, "b"}});
  check_no_error(unchecked);
}

TEST_CASE("deadlock: C4 operations do not wait for a rank that has ended the cell") {
  World world(3);
  world.submit(0, sum_of("a"));
  world.submit(2, sum_of("a"));
  world.deliver_all();
  report(world, 0, {{0, "a"}}, {}, 7, "cell 3:2");
  report(world, 2, {{0, "a"}}, {}, 7, "cell 3:2");
  check_no_error(world);
  end_cell(world, 1, 7);
  for (const int rank : {0, 2}) {
    const Response received = only_response(world, rank);
    CHECK(received.status.code == Code::kMismatch);
    CHECK(received.status.rank == 1);
    CHECK(received.status.message.find(
              "ranks 0, 2 for ALLREDUCE a at cell 3:2; rank 1 has ended the cell.") !=
          std::string::npos);
  }
  resume(world, 1);
  works_on(world, "a");
}

TEST_CASE("deadlock: the report that a cell has ended holds for that cell, until it is withdrawn") {
  struct Case {
    const char* what;
    std::int64_t waiting_run;
    bool resumes;
    bool received;
  };
  for (const Case& one :
       {Case{"the same cell", 7, false, true},
        Case{"a cell that does not run there", 8, false, false}, Case{"a script", 0, false, false},
        Case{"a rank that works again", 7, true, false}}) {
    World world(2);
    end_cell(world, 1, 7);
    if (one.resumes) resume(world, 1);
    world.submit(0, sum_of("a"));
    world.deliver_all();
    report(world, 0, {{0, "a"}}, {}, one.waiting_run);
    CHECK_MESSAGE(world.responses(0).size() == (one.received ? 1U : 0U), one.what);
  }
}

TEST_CASE("deadlock: C4 a join without ranks that have ended the cell fails, in a tree as well") {
  for (const int fanout : {2, 64}) {
    World world(4, tree_of(fanout));
    world.submit(0, about(Kind::kJoin, "join.of.0"));
    world.submit(3, about(Kind::kJoin, "join.of.3"));
    world.deliver_all();
    report(world, 3, {{0, "join.of.3"}}, {}, 7, "cell 3:2");
    report(world, 0, {{0, "join.of.0"}}, {}, 7, "cell 3:2");
    check_no_error(world);
    end_cell(world, 1, 7);  // that rank 2 computes does not help
    for (const int rank : {0, 3}) {
      const Response received = only_response(world, rank);
      CHECK(received.names == std::vector<std::string>{"join.of." + std::to_string(rank)});
      CHECK(received.status.code == Code::kMismatch);
      CHECK(received.status.rank == 1);
      CHECK(received.status.message.find(
                "ranks 0, 3 for JOIN join at cell 3:2; rank 1 has ended the cell.") !=
            std::string::npos);
    }
    resume(world, 1);
    works_on(world, "a");
    for (int rank = 0; rank < 4; ++rank) world.submit(rank, about(Kind::kJoin, "join.again"));
    world.deliver_all();
    for (int rank = 0; rank < 4; ++rank) CHECK(only_response(world, rank).status.is_ok());
  }
}

TEST_CASE("deadlock: a rank that waits for a join takes part in the others' operations") {
  World world(3);
  world.submit(0, about(Kind::kJoin, "join"));
  world.submit(1, sum_of("a"));
  world.deliver_all();
  report(world, 0, {{0, "join"}}, {}, 7);
  report(world, 1, {{0, "a"}}, {}, 7);
  check_no_error(world);  // rank 2 computes
  world.submit(2, sum_of("a"));
  world.deliver_all();
  for (const int rank : {1, 2}) CHECK(only_response(world, rank).status.is_ok());
  CHECK(only_response(world, 0).names == std::vector<std::string>{"a"});
  world.submit(1, about(Kind::kJoin, "join"));
  world.submit(2, about(Kind::kJoin, "join"));
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) CHECK(only_response(world, rank).status.is_ok());
}

TEST_CASE("deadlock: a join and an operation that wait for one ended rank fail together") {
  World world(3);
  world.submit(0, about(Kind::kJoin, "join"));
  world.submit(1, sum_of("a"));
  world.deliver_all();
  report(world, 0, {{0, "join"}}, {}, 7);
  report(world, 1, {{0, "a"}}, {}, 7);
  end_cell(world, 2, 7);
  for (const int rank : {0, 1}) {
    const Response received = only_response(world, rank);
    CHECK(received.status.code == Code::kMismatch);
    CHECK(received.status.message.find("rank 1 for ALLREDUCE a; rank 0 for JOIN join; rank 2 has "
                                       "ended the cell.") != std::string::npos);
  }
}

TEST_CASE("deadlock: a report of a join does not hold for the next join") {
  World world(2);
  world.now = kSecond;
  world.submit(0, about(Kind::kJoin, "join"));
  world.deliver_all();
  report(world, 0, {{0, "join"}}, {}, 7);
  world.submit(1, about(Kind::kJoin, "join"));
  world.deliver_all();
  for (int rank = 0; rank < 2; ++rank) CHECK(only_response(world, rank).status.is_ok());
  world.now += kSecond;
  world.submit(0, about(Kind::kJoin, "join"));
  world.deliver_all();
  end_cell(world, 1, 7);
  check_no_error(world);
}

TEST_CASE("deadlock: a rank that requests after the end of its cell has not ended") {
  World world(3);
  end_cell(world, 1, 7);
  world.submit(1, sum_of("b"));  // from a thread that it did not know of
  world.submit(0, sum_of("a"));
  world.deliver_all();
  report(world, 0, {{0, "a"}}, {}, 7);
  check_no_error(world);
}

TEST_CASE("deadlock: ranks outside of an operation's process set do not matter") {
  World world(3);
  world.submit_all(about(Kind::kAddSet, "add", {0, 2}));
  world.deliver_all();
  for (int rank = 0; rank < 3; ++rank) only_response(world, rank);
  end_cell(world, 1, 7);
  world.submit(0, in_set(sum_of("a"), 1));
  world.deliver_all();
  report(world, 0, {{1, "a"}}, {}, 7);
  check_no_error(world);
  world.submit(2, in_set(sum_of("a"), 1));
  world.deliver_all();
  for (const int rank : {0, 2}) CHECK(only_response(world, rank).status.is_ok());
}

TEST_CASE("deadlock: a report survives as a request, and invalid ones are refused") {
  const Blocked blocked{7, {{0, "a"}, {3, ""}}, {"x", "y/z"}, 5, "cell 3:2"};
  const Result<Blocked> read = blocked_of(request_of(blocked));
  REQUIRE(read);
  CHECK(read.value().at_ns == 7);
  CHECK(read.value().waits == blocked.waits);
  CHECK(read.value().may_request == blocked.may_request);
  CHECK(read.value().run == 5);
  CHECK(read.value().place == "cell 3:2");
  CHECK(!read.value().resumed);
  Blocked withdrawal;
  withdrawal.resumed = true;
  const Result<Blocked> withdrawn = blocked_of(request_of(withdrawal));
  REQUIRE(withdrawn);
  CHECK(withdrawn.value().resumed);
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{},
                                              {0},
                                              {0, 0},
                                              {0, 0, -1},
                                              {0, 0, -2},
                                              {0, 0, 0},
                                              {0, 0, 1, 0},
                                              {0, 0, 1, 0, 1},
                                              {0, 0, 1, 0, 0, 2},
                                              {0, 0, 0, -1},
                                              {0, 0, 1, 0, 0, 1, 1},
                                              {0, 0, std::int64_t{1} << 62}}) {
    Request request = about(Kind::kBlocked, "a", sizes);
    CHECK_MESSAGE(!blocked_of(request), shape_text(sizes));
  }
}

}  // namespace hvd::test
