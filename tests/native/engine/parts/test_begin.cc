// Who begins an operation and goes on with other work: what has not to wait is done by then.
#include <doctest/doctest.h>

#include "engine/engines.h"

namespace hvd::test {
namespace {

Result<TaskPtr> give(Engine& engine, const std::string& name, std::vector<float>& values,
                     ReduceOp op = ReduceOp::kSum) {
  Request request = request_for<float>(name, values.size());
  request.op = op;
  return engine.enqueue_task(std::move(request), {in_place(values)}, Next::kBegins);
}

TaskPtr begun(Engine& engine, const std::string& name, std::vector<float>& values) {
  const Result<TaskPtr> task = give(engine, name, values);
  REQUIRE(task.status().message == "");
  engine.begin(task.value());
  return task.value();
}

void check_ends_as(Engine& engine, const TaskPtr& task, const std::vector<float>& values,
                   float each) {
  CHECK(engine.help(task, std::chrono::seconds(30)));
  CHECK(engine.end(task).message == "");
  CHECK(values == std::vector<float>(values.size(), each));
  CHECK(engine.end(task).code == Code::kInvalidArgument);
}

}  // namespace

// Except while the background thread looks whether there is something to do: at its start, and now
// and then.
TEST_CASE("begin: a single operation is done at once, without waking another thread") {
  Engines engines = engines_of(1);
  on_every_rank(engines, [&](Engine& engine, int) {
    std::vector<float> values(4, 2.0F);
    std::int64_t in_a_row = 0;
    for (int round = 0; round < 10'000 && in_a_row < 50; ++round) {
      const std::int64_t before = engine.counters().caller_runs.load();
      const TaskPtr task = begun(engine, "alone", values);
      const bool at_once = engine.counters().caller_runs.load() > before;
      if (at_once) CHECK(task->done());
      CHECK(give(engine, "alone", values).status().code == Code::kInvalidArgument);
      check_ends_as(engine, task, values, 2.0F);
      in_a_row = at_once ? in_a_row + 1 : 0;
    }
    CHECK(in_a_row == 50);
  });
}

TEST_CASE(
    "begin: a large operation, or one beside others in flight, is left to the background thread") {
  Engines engines = engines_of(1);
  on_every_rank(engines, [&](Engine& engine, int) {
    std::vector<float> large(20000, 1.0F), first(4, 1.0F), second(4, 3.0F);
    const TaskPtr others = give(engine, "large", large).value();
    CHECK_FALSE(others->held);
    check_ends_as(engine, others, large, 1.0F);
    const TaskPtr one = give(engine, "one", first).value(),
                  two = give(engine, "two", second).value();
    CHECK(one->held);
    CHECK_FALSE(two->held);
    engine.begin(one);
    check_ends_as(engine, two, second, 3.0F);
    check_ends_as(engine, one, first, 1.0F);
  });
}

TEST_CASE("begin: with process sets it is left to the background thread") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    CHECK(add_set(engine, {0}) > 0);
    std::vector<float> values(4, 1.0F);
    const TaskPtr task = give(engine, "of all", values).value();
    CHECK_FALSE(task->held);
    check_ends_as(engine, task, values, 2.0F);
  });
}

TEST_CASE("begin: does not wait for late ranks; the background thread completes the operation") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int round = 0; round < 30; ++round) {
      const int late = round % 2;
      if (rank == late) check_usable(engine, "first");
      std::vector<float> values(4, 1.0F);
      const TaskPtr task = begun(engine, "begun", values);
      if (rank != late) {
        CHECK_FALSE(task->done());
        check_usable(engine, "first");
      }
      while (!engine.poll(task->handle).value()) std::this_thread::yield();
      check_ends_as(engine, task, values, 2.0F);
    }
  });
}

TEST_CASE("begin: errors are reported at the wait, on every rank") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int round = 0; round < 10; ++round) {
      std::vector<float> values(static_cast<std::size_t>(3 + rank), 1.0F);
      const TaskPtr task = begun(engine, "shapes", values);
      CHECK(engine.help(task, std::chrono::seconds(30)));
      CHECK(engine.end(task).code == Code::kMismatch);
      check_usable(engine, "after");
    }
  });
}

TEST_CASE("begin: shutdown ends operations that were begun") {
  Engines engines = engines_of(2);
  run_ranks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    std::vector<float> values(4, 1.0F);
    const Result<TaskPtr> task = give(engine, "never", values);
    if (rank == 1) {
      engine.shutdown();
      engine.begin(task.value());
      CHECK(task.value()->done());
      CHECK(engine.end(task.value()).code == Code::kShutdown);
    } else {
      engine.begin(task.value());
      CHECK(engine.help(task.value(), std::chrono::seconds(30)));
      CHECK(engine.end(task.value()).code == Code::kShutdown);
      engine.shutdown();
    }
  });
}

}  // namespace hvd::test
