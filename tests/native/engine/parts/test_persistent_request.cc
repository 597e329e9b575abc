// Persistent requests: a sum that meets all others at once gives what a task gives, and is counted
// and traced like one; where it does not, nothing has happened.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "engine/engines.h"
#include "engine/parts/meeting.h"

namespace hvd::test {
namespace {

using Persistent = std::shared_ptr<PersistentRequest>;

Persistent sum_of(const Engine& engine, const std::string& name, std::size_t count,
                  ReduceOp op = ReduceOp::kSum) {
  Request request = request_for<float>(name, count);
  request.op = op;
  return engine.persistent(request);
}

void check_sum(const Engine& engine, const std::vector<float>& values,
               ReduceOp op = ReduceOp::kSum) {
  const int size = engine.topology().size;
  const double divisor = op == ReduceOp::kAverage ? size : 1;
  CHECK(same_bytes(values, reduced<float>(first_ranks(size), values.size(), op, divisor)));
}

// As a frontend calls it. True: at once.
bool call(Engine& engine, PersistentRequest& request, std::vector<float>& values) {
  const std::vector<Operand> operands{in_place(values)};
  if (engine.run(request, operands)) return true;
  CHECK(run(engine, request.request, operands).status.message == "");
  return false;
}

// Whether all met at once, for once.
bool meets(Engine& engine, const Persistent& request, std::size_t count, ReduceOp op) {
  return meet(engine, [&] {
    auto values = small_numbers<float>(engine.topology().rank, count);
    const bool met = call(engine, *request, values);
    check_sum(engine, values, op);
    return met;
  });
}

}  // namespace

TEST_CASE("persistent request: has the result of a task, on every rank") {
  for (const int size : {1, 2, 3}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
        for (const std::size_t count : {1U, 33U, 16384U}) {
          const auto request = sum_of(engine, "x" + std::to_string(count), count, op);
          REQUIRE((request != nullptr));
          for (int i = 0; i < 30; ++i) {
            auto values = small_numbers<float>(rank, count);
            call(engine, *request, values);
            check_sum(engine, values, op);
          }
        }
      }
      CHECK(meets(engine, sum_of(engine, "y", 33, ReduceOp::kAverage), 33, ReduceOp::kAverage));
    });
  }
}

TEST_CASE("persistent request: may have a separate output, and may be a group") {
  Engines engines = engines_of(1);
  on_every_rank(engines, [&](Engine& engine, int) {
    Request group = request_for<float>("group", 4);
    group.tensors.push_back(meta_of<float>({2}));
    group.postscale = 0.5;
    const auto request = engine.persistent(group);
    REQUIRE((request != nullptr));
    const std::vector<float> first{2, 4, 6, 8}, second{10, 12};
    std::vector<float> half(4), other_half(2);
    bool met = false;
    while (!met) {
      met = engine.run(*request,
                       {{first.data(), half.data(), 4}, {second.data(), other_half.data(), 2}});
    }
    CHECK(half == std::vector<float>{1, 2, 3, 4});
    CHECK(other_half == std::vector<float>{5, 6});
  });
}

TEST_CASE("persistent request: counters and trace record it like any operation") {
  Engines engines = engines_of(1);
  on_every_rank(engines, [&](Engine& engine, int) {
    const auto request = sum_of(engine, "x", 5);
    std::vector<float> values(5, 1.0F);
    const auto ops = engine.counters().ops.load(), bytes = engine.counters().bytes.load();
    std::uint64_t cursor = 0;
    while (!engine.run(*request, {in_place(values)})) {  // the background thread may look just now
    }
    CHECK(engine.counters().ops.load() == ops + 1);
    CHECK(engine.counters().bytes.load() == bytes + 20);
    std::vector<std::string> phases;
    for (const TraceRecord& one : traced(engine, cursor)) {
      CHECK(one.name == "x");
      CHECK(one.bytes == 20);
      phases.emplace_back(std::string(one.phase) + " of " + std::to_string(one.detail));
    }
    CHECK(phases ==
          std::vector<std::string>{"NEGOTIATE_ALLREDUCE of 0", "ALLREDUCE of 1", "LOCAL of 0"});
  });
}

TEST_CASE("persistent request: refused for operations that it does not cover") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    CHECK((sum_of(engine, "x", 3) != nullptr));
    CHECK((sum_of(engine, "", 3) == nullptr));       // its name is the number of calls before
    CHECK((sum_of(engine, "x", 16385) == nullptr));  // more than goes beside the word
    CHECK((sum_of(engine, "x", 3, ReduceOp::kAdasum) == nullptr));
    Request mixed = request_for<float>("x", 3);
    mixed.tensors.push_back(meta_of<double>({3}));
    CHECK((engine.persistent(mixed) == nullptr));
    CHECK((engine.persistent(request_for<float>("x", 3, Kind::kBroadcast)) == nullptr));
    Request scaled = request_for<float>("scaled", 3);
    scaled.prescale = 2;  // the inputs would have to be changed before they are agreed on
    const auto request = engine.persistent(scaled);
    auto values = small_numbers<float>(engine.topology().rank, 3);
    CHECK_FALSE(call(engine, *request, values));
    CHECK(same_bytes(values, reduced<float>(first_ranks(2), 3, ReduceOp::kSum, 1, 2)));
  });
}

TEST_CASE("persistent request: not used while this rank has other operations in flight") {
  Engines engines = engines_of(1);
  on_every_rank(engines, [&](Engine& engine, int) {
    const auto request = sum_of(engine, "x", 3);
    std::vector<float> values(3, 1.0F), others(3, 1.0F);
    const auto handle = start_sum(engine, "x", others);  // whose name would be taken
    CHECK_FALSE(engine.run(*request, {in_place(values)}));
    CHECK((engine.begin(*request, {in_place(values)}).value() == nullptr));
    CHECK(outcome_of(engine, handle).status.message == "");
    CHECK(meets(engine, request, 3, ReduceOp::kSum));
  });
}

TEST_CASE("persistent request: not used with process sets, nor while a timeline is written") {
  const std::string path = "/tmp/hvd_persistent_" + std::to_string(getpid()) + ".json";
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int) {
    const auto request = sum_of(engine, "x", 3);
    const auto never = [&] {
      for (int i = 0; i < 20; ++i) {
        auto values = small_numbers<float>(engine.topology().rank, 3);
        CHECK_FALSE(call(engine, *request, values));
        check_sum(engine, values);
      }
    };
    Request remove = plain_request(Kind::kRemoveSet);
    remove.sizes = {add_set(engine, {0}, "one")};
    never();
    CHECK(run(engine, remove).number == 1);
    CHECK(engine.start_timeline(path, false).message == "");
    run(engine, plain_request(Kind::kBarrier, "begun"));
    never();
    run(engine, plain_request(Kind::kBarrier, "all"));
    engine.stop_timeline();
    run(engine, plain_request(Kind::kBarrier, "over"));
    CHECK(meets(engine, request, 3, ReduceOp::kSum));
  });
  std::remove(path.c_str());
}

TEST_CASE("persistent request: memory that the ranks share is not copied") {
  Engines engines = connected_engines(2, [](int) { return Table{}; });
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Request allocate = plain_request(Kind::kAllocate);
    allocate.sizes = {4 * 100};
    const Outcome given = run(engine, allocate);
    REQUIRE(given.status.message == "");
    const SharedPart part = engine.part_of(given.number);
    auto* const data = reinterpret_cast<float*>(part.data);
    const auto request = sum_of(engine, "x", 100);
    for (int i = 0; i < 20; ++i) {
      for (int k = 0; k < 100; ++k) data[k] = static_cast<float>(rank + k);
      const std::vector<Operand> operands{{data, data, 100}};
      CHECK_FALSE(engine.run(*request, operands));
      CHECK(run(engine, request->request, operands).status.message == "");
      CHECK(data[99] == 199.0F);
    }
  });
}

TEST_CASE("persistent request: counts as a call, so that unnamed operations match") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const auto request = sum_of(engine, "x", 3);
    for (int i = 0; i < 200; ++i) {
      auto values = small_numbers<float>(rank, 3);
      if (rank == 0) {
        call(engine, *request, values);
      } else {
        CHECK(run(engine, request->request, {in_place(values)}).status.message == "");
      }
      check_sum(engine, values);
      auto nameless = small_numbers<float>(rank, 5);
      CHECK(run(engine, request_for<float>("", 5), {in_place(nameless)}).status.message == "");
      check_sum(engine, nameless);
    }
  });
}

TEST_CASE("persistent request: mixed with tasks in any order, no operation is lost or mixed up") {
  for (const unsigned seed : {1U, 2U, 3U}) {
    Engines engines = engines_of(2);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      std::mt19937 random(seed * 100 + static_cast<unsigned>(rank));
      std::vector<Persistent> requests;
      for (const char* const name : {"a", "b"}) requests.push_back(sum_of(engine, name, 17));
      for (std::size_t i = 0; i < 300; ++i) {
        PersistentRequest& request = *requests[i % 2];
        auto values = small_numbers<float>(rank, 17), beside = small_numbers<float>(rank, 9);
        std::int64_t handle = -1;
        if (random() % 3 == 0) handle = start_sum(engine, "beside", beside);
        if (random() % 4 == 0) std::this_thread::yield();
        TaskPtr begun;
        if (random() % 2 == 0) begun = engine.begin(request, {in_place(values)}).value();
        if (begun != nullptr) {
          CHECK(engine.help(begun, std::chrono::seconds(30)));
          CHECK(engine.end(begun).message == "");
        } else if (random() % 2 == 0) {
          call(engine, request, values);
        } else {
          CHECK(run(engine, request.request, {in_place(values)}).status.message == "");
        }
        check_sum(engine, values);
        if (handle < 0) handle = start_sum(engine, "beside", beside);
        CHECK(outcome_of(engine, handle).status.message == "");
        check_sum(engine, beside);
      }
    });
  }
}

TEST_CASE("persistent request: keeps its name until it has been waited for") {
  Engines engines = engines_of(1);
  on_every_rank(engines, [&](Engine& engine, int) {
    const auto request = sum_of(engine, "x", 3);
    std::vector<float> values(3, 1.0F);
    TaskPtr task;
    while (task == nullptr) task = engine.begin(*request, {in_place(values)}).value();
    CHECK(task->done());
    CHECK(engine.pending().empty());
    CHECK_FALSE(engine.run(*request, {in_place(values)}));
    const auto other = sum_of(engine, "y", 3);  // beside what has finished there may be more
    TaskPtr second_task;
    while (second_task == nullptr) second_task = engine.begin(*other, {in_place(values)}).value();
    CHECK(engine.end(second_task).message == "");
    const auto second = engine.enqueue(request->request, {in_place(values)});
    CHECK(second.status().code == Code::kInvalidArgument);
    CHECK(engine.poll(task->handle).value());
    CHECK(engine.end(task).message == "");
    CHECK(engine.end(task).code == Code::kInvalidArgument);
    CHECK(meets(engine, request, 3, ReduceOp::kSum));
  });
}

TEST_CASE("persistent request: after an abort or shutdown it does nothing") {
  Engines engines = engines_of(2);
  run_ranks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    const auto request = sum_of(engine, "x", 3);
    std::vector<float> values(3, 7.0F);
    if (rank == 0) engine.abort("by this test");
    while (engine.ended()) std::this_thread::yield();
    CHECK_FALSE(engine.run(*request, {in_place(values)}));
    engine.shutdown();
    CHECK_FALSE(engine.run(*request, {in_place(values)}));
    CHECK((sum_of(engine, "x", 3) == nullptr));
    CHECK(values == std::vector<float>(3, 7.0F));
  });
}

}  // namespace hvd::test
