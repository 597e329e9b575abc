// When and how a call ends, names on the wire, calls of one name, and facts.
#include <thread>

#include "tf/call.h"
#include "tf/core_of_tests.h"

namespace hvd::tf::test {
namespace {

using Names = std::vector<std::string>;

int number(const std::string& op, int set, int* code = nullptr, std::string* text = nullptr) {
  const Node node(op, op, {{"process_set_id", set}});
  Run run({});
  run.begin(node);
  if (code != nullptr) *code = run.code();
  if (text != nullptr) *text = run.text();
  return run.code() == 0 ? run.output(0).as<std::int32_t>()[0] : -1;
}

}  // namespace

TEST_CASE("tf: an operation that ends before enqueue returns") {
  FakeCore core;
  core.ends_at_once = HVD_OK;
  const Node node("HvdAllreduce", "x");
  for (int i = 0; i < 3; ++i) {
    Run run(with_ticket(floats({1})));
    run.begin(node);
    CHECK(run.ended() == 1);
    CHECK(run.code() == 0);
  }
}

TEST_CASE("tf: a failure has the class and the rank that it has in Python") {
  struct Case {
    std::int32_t code;
    Code status;
    const char* tag;
  };
  for (const Case& each :
       {Case{HVD_INVALID_ARGUMENT, Code::kInvalidArgument, ""},
        Case{HVD_MISMATCH, Code::kFailedPrecondition, " [hvd_kernel.errors.Mismatch, rank 1]"},
        Case{HVD_ABORTED, Code::kAborted, " [hvd_kernel.errors.RankFailed, rank 1]"},
        Case{HVD_RANK_DIED, Code::kAborted, " [hvd_kernel.errors.RankDied, rank 1]"},
        Case{HVD_SHUTDOWN, Code::kAborted, " [hvd_kernel.errors.HorovodInternalError, rank 1]"},
        Case{HVD_STALLED, Code::kUnknown, " [hvd_kernel.errors.RankStalled, rank 1]"},
        Case{HVD_NO_MEMORY, Code::kUnknown, " [hvd_kernel.errors.OutOfMemory, rank 1]"},
        Case{99, Code::kUnknown, " [hvd_kernel.errors.HorovodInternalError, rank 1]"}}) {
    FakeCore core;
    const Node node("HvdAllreduce", "x");
    Run run(with_ticket(floats({1})));
    run.begin(node);
    core.end(0, each.code, "it is over", 1);
    CHECK(run.ended() == 1);
    CHECK(run.code() == static_cast<int>(each.status));
    CHECK(run.text() == std::string("it is over") + each.tag);
  }
}

TEST_CASE("tf: immediate refusals") {
  FakeCore core;
  const Node node("HvdAllreduce", "x");
  Run run(with_ticket(floats({1})));
  SUBCASE("by the core") {
    core.refuses = {HVD_INVALID_ARGUMENT, "no such set"};
    run.begin(node);
    CHECK(run.code() == static_cast<int>(Code::kInvalidArgument));
    CHECK(run.text() == "no such set");
  }
  SUBCASE("before init") {
    core.initialized = false;
    run.begin(node);
    CHECK(run.code() == static_cast<int>(Code::kFailedPrecondition));
    CHECK(run.text() ==
          "Horovod has not been initialized; use hvd.init(). "
          "[hvd_kernel.errors.HorovodInternalError]");
  }
  CHECK(run.ended() == 1);
}

TEST_CASE("tf: names on the wire") {
  FakeCore core;
  core.ends_at_once = HVD_OK;
  const auto asked = [&core](const std::string& node_name, bool last_part, Tensor ticket,
                             std::int64_t turn) {
    const Node node("HvdAllreduce", node_name, {{"ignore_name_scope", last_part ? 1 : 0}});
    Run run({floats({1}), std::move(ticket)}, 1, turn);
    run.begin(node);
    return core.names().back();
  };
  CHECK(asked("outer/PartitionedCall_1/x", false, ticket(), 0) == "outer/PartitionedCall_1/x");
  CHECK(asked("outer/_12/cond/x_3/_4", false, ticket(), 0) == "outer/cond/x_3");
  CHECK(asked("outer/inner/x", true, ticket(), 0) == "x");
  CHECK(asked("HvdAllreduce", false, ticket("mine.3"), 0) == "mine.3");
  CHECK(asked("loop/x", false, ticket(), 5) == "loop/x#5");
  CHECK(asked("loop/x", false, ticket(), kTurns) == "loop/x");
}

TEST_CASE("tf: a second call of a name begins when the first has ended; of another set at once") {
  FakeCore core;
  const Node node("HvdAllreduce", "x"), other("HvdAllreduce", "x", {{"process_set_id", 1}});
  Run first(with_ticket(floats({1}))), second(with_ticket(floats({2}))),
      third(with_ticket(floats({3}))), elsewhere(with_ticket(floats({4})));
  first.begin(node);
  second.begin(node);
  third.begin(node);
  elsewhere.begin(other);
  CHECK(core.names() == Names{"x", "x"});
  core.end(0, HVD_MISMATCH, "differ");  // an end is an end
  CHECK(first.code() != 0);
  CHECK(core.names() == Names{"x", "x", "x"});
  CHECK(static_cast<const float*>(core.at(2).inputs[0].data)[0] == 2);
  CHECK(second.ended() == 0);
  core.ends_at_once = HVD_OK;  // the third, within the end of the second
  core.end(2);
  CHECK(second.ended() == 1);
  CHECK(third.ended() == 1);
  core.end(1);
  CHECK(elsewhere.ended() == 1);
}

TEST_CASE("tf: operations begun in waiting runs") {
  FakeCore core;
  const Node a("HvdAllreduce", "a"), b("HvdAllreduce", "b"), c("HvdAllreduce", "c");
  Run old(with_ticket(floats({1})), 7), of_a(with_ticket(floats({1})), 8),
      of_b(with_ticket(floats({1})), 8);
  old.begin(c);
  core.end(0);
  CHECK(begun() == "");
  of_a.begin(a);
  of_b.begin(b);
  core.end(1);
  const std::string names = begun();  // a's has ended, in a run in which b's has not
  CHECK((names == "a\nb\n" || names == "b\na\n"));
  core.end(2);
  CHECK(begun() == "");
}

TEST_CASE("tf: calls of several threads, ended by others") {
  constexpr int kThreads = 4, kCalls = 50;
  FakeCore core;
  const Node shared("HvdAllreduce", "shared");
  const std::int64_t before = counters.calls;
  std::atomic<int> ended{0};
  std::atomic<bool> is_over{false};
  std::thread ender([&] {
    for (std::size_t next = 0; !is_over;) {
      std::unique_lock<std::mutex> locked(core.mutex);
      if (next == core.all.size()) continue;
      locked.unlock();
      core.end(next++);
    }
  });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const Node own("HvdAllreduce", "own" + std::to_string(thread));
      for (int i = 0; i < kCalls; ++i) {
        Run one(with_ticket(floats({1}))), two(with_ticket(floats({2})));
        one.begin(shared);
        two.begin(own);
        while (one.ended() + two.ended() < 2) std::this_thread::yield();
        ended += 2;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  ender.join();
  CHECK(ended == 2 * kThreads * kCalls);
  CHECK(counters.calls - before == 2 * kThreads * kCalls);
}

TEST_CASE("tf: facts are queried from the engine when the graph runs") {
  FakeCore core;
  CHECK(number("HvdSize", 0) == 2);
  CHECK(number("HvdRank", 0) == 1);
  CHECK(number("HvdLocalSize", 0) == 5);
  CHECK(number("HvdLocalRank", 0) == 4);
  CHECK(number("HvdProcessSetIncluded", 0) == 1);
  CHECK(number("HvdProcessSetIncluded", 1) == 0);
  int code = 0;
  std::string text;
  number("HvdSize", 7, &code, &text);
  CHECK(text == "there is no process set 7");
  number("HvdRank", 1, &code, &text);
  CHECK(text == "this rank is not a member of process set 1");
  CHECK(code == static_cast<int>(Code::kInvalidArgument));
  core.initialized = false;
  number("HvdSize", 0, &code, &text);
  CHECK(code == static_cast<int>(Code::kFailedPrecondition));
}

TEST_CASE("tf: steps and samples are counted, and a ticket has no bytes") {
  const FakeCore core;
  const std::int64_t steps = counters.steps, samples = counters.samples;
  const Node step("HvdStep", "step"), sampled("HvdSamples", "samples"), made("HvdTicket", "t");
  Run stepped({}), empty({});
  stepped.begin(step);
  empty.begin(made);
  Tensor given = of_type(kInt64, {});
  *given.as<std::int64_t>() = 32;
  Run taken({given}), wrong({of_type(kInt64, {1})});
  taken.begin(sampled);
  wrong.begin(sampled);
  CHECK(counters.steps - steps == 1);
  CHECK(counters.samples - samples == 32);
  CHECK(empty.output(0).shape == std::vector<std::int64_t>{0});
  CHECK(wrong.text() == "the number of samples must be a scalar");
}

}  // namespace hvd::tf::test
