// Process sets that progress without each other, and ranks that join.
#include <doctest/doctest.h>

#include <atomic>

#include "engines.h"

namespace hvd::test {
namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Outcome reduce_small(Engine& engine, const std::string& name, std::vector<float>& values,
                     ReduceOp op, int set = 0, double prescale = 1) {
  Request request = request_for<float>(name, values.size());
  request.op = op;
  request.set = set;
  request.prescale = prescale;
  return run(engine, request, {in_place(values)});
}

}  // namespace

TEST_CASE("sets: overlapping sets reduce, gather and broadcast; ids are reused") {
  const int size = 4;
  Engines engines = engines_of(size);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const std::vector<std::vector<int>> members{{0, 1}, {1, 2, 3}, {0, 2, 3}};
    std::vector<int> ids;
    for (const auto& one : members) ids.push_back(add_set(engine, one));
    for (std::size_t i = 0; i < members.size(); ++i) {
      CHECK(engine.ranks_of(ids[i]) == members[i]);
      if (!contains(members[i], rank)) continue;
      auto values = small_numbers<float>(rank, 100);
      CHECK(reduce_small(engine, "x", values, ReduceOp::kSum, ids[i]).status.message == "");
      CHECK(same_bytes(values, reduced<float>(members[i], 100, ReduceOp::kSum)));
      auto average = small_numbers<float>(rank, 100);
      const auto divisor = static_cast<double>(members[i].size());
      CHECK(
          reduce_small(engine, "x", average, ReduceOp::kAverage, ids[i], divisor).status.message ==
          "");
      CHECK(same_bytes(average, reduced<float>(members[i], 100, ReduceOp::kSum)));
      // The root is a rank of the engine, not a place.
      auto sent = input_of<float>(rank, 3, 20);
      Request broadcast = request_for<float>("b", 20, Kind::kBroadcast);
      broadcast.set = ids[i];
      broadcast.root = members[i].back();
      CHECK(run(engine, broadcast, {in_place(sent)}).status.message == "");
      CHECK(same_bytes(sent, input_of<float>(members[i].back(), 3, 20)));
    }
    check_usable(engine, "all");
    Request remove = plain_request(Kind::kRemoveSet);
    remove.sizes = {ids[1]};
    CHECK(run(engine, remove).number == 1);
    CHECK(engine.ranks_of(ids[1]).empty());
    CHECK(engine.ranks_of(ids[2]) == members[2]);
    remove.sizes = {12345};
    CHECK(run(engine, remove).number == 0);
    CHECK(add_set(engine, {0, 3}) > 0);
    check_usable(engine, "end");
  });
}

TEST_CASE("sets: the odd ranks pass their barriers while the even ones wait") {
  const int size = 5;
  Engines engines = engines_of(size);
  std::atomic<int> odd_done{0};
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const int even = add_set(engine, {0, 2, 4}, "even");
    const int odd = add_set(engine, {1, 3}, "odd");
    if (rank % 2 == 1) {
      for (int round = 0; round < 10; ++round) {
        CHECK(run(engine, plain_request(Kind::kBarrier, "b", odd)).status.is_ok());
      }
      odd_done.fetch_add(1);
    } else if (rank == 4) {
      while (odd_done.load() < 2) std::this_thread::yield();
      CHECK(run(engine, plain_request(Kind::kBarrier, "b", even)).status.is_ok());
    } else {
      CHECK(run(engine, plain_request(Kind::kBarrier, "b", even)).status.is_ok());
      CHECK(odd_done.load() == 2);
    }
    check_usable(engine, "end");
  });
}

TEST_CASE("sets: the same name may be in flight in two sets at once") {
  const int size = 3;
  Engines engines = engines_of(size);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const int pair = add_set(engine, {0, 2});
    auto all = small_numbers<float>(rank, 10);
    auto two = small_numbers<float>(rank, 10);
    const auto first = start_sum(engine, "x", all);
    if (rank != 1) {
      const auto second = start_sum(engine, "x", two, ReduceOp::kSum, pair);
      CHECK(outcome_of(engine, second).status.message == "");
      CHECK(same_bytes(two, reduced<float>({0, 2}, 10, ReduceOp::kSum)));
    }
    CHECK(outcome_of(engine, first).status.message == "");
    CHECK(same_bytes(all, reduced<float>({0, 1, 2}, 10, ReduceOp::kSum)));
  });
}

TEST_CASE("sets: the call itself refuses a rank that is no member, and an unknown set") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const int alone = add_set(engine, {0});
    std::vector<float> values(3);
    Request request = request_for<float>("x", 3);
    request.set = 77;
    CHECK(engine.enqueue(request, {in_place(values)}).status().code == Code::kInvalidArgument);
    request.set = alone;
    const auto handle = engine.enqueue(request, {in_place(values)});
    if (rank == 1) CHECK(handle.status().code == Code::kInvalidArgument);
    if (rank == 0) CHECK(outcome_of(engine, handle.value()).status.message == "");
    Request set = plain_request(Kind::kAddSet);
    set.sizes = {0, 9};
    CHECK(engine.enqueue(set, {}).status().code == Code::kInvalidArgument);
    check_usable(engine, "after");
  });
}

TEST_CASE("join: uneven steps: a joined rank takes no part in sums, minima, maxima, products") {
  for (const int size : {1, 2, 3, 4, 5}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      // Rank r makes 2 (r + 1) steps.
      for (int step = 0; step < 2 * (rank + 1); ++step) {
        std::vector<int> there;
        for (int r = 0; r < size; ++r) {
          if (step < 2 * (r + 1)) there.push_back(r);
        }
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
          auto values = small_numbers<float>(rank, 77);
          CHECK(reduce_small(engine, name_of(op), values, op).status.message == "");
          CHECK(same_bytes(values, reduced<float>(there, 77, op)));
        }
        // Average divides by all ranks; the factor on the inputs is not applied to who is absent.
        auto values = small_numbers<float>(rank, 77);
        CHECK(reduce_small(engine, "average", values, ReduceOp::kAverage, 0, size).status.message ==
              "");
        CHECK(same_bytes(values, reduced<float>(there, 77, ReduceOp::kSum)));
        auto product = small_numbers<float>(rank, 9);
        CHECK(reduce_small(engine, "scaled", product, ReduceOp::kProduct, 0, 2).status.message ==
              "");
        const double factor = static_cast<double>(1U << there.size());
        CHECK(same_bytes(product, reduced<float>(there, 9, ReduceOp::kProduct, 1, factor)));
      }
      const Outcome last = run(engine, plain_request(Kind::kJoin));
      CHECK(last.status.message == "");
      CHECK(last.number == size - 1);
      check_usable(engine, "after");  // the state is over: all ranks count again
    });
  }
}

TEST_CASE("join: gathering with a joined rank fails at the callers; the joined rank stays joined") {
  const int size = 3;
  Engines engines = engines_of(size);
  std::atomic<bool> joined{false};
  on_every_rank(engines, [&](Engine& engine, int rank) {
    if (rank == 2) {
      const auto handle = engine.enqueue(plain_request(Kind::kJoin), {});
      REQUIRE(handle.is_ok());
      joined.store(true);
      CHECK(outcome_of(engine, handle.value()).status.message == "");
    } else {
      while (!joined.load()) std::this_thread::yield();
      std::vector<float> values(6);
      for (const Kind kind : {Kind::kAllgather, Kind::kAlltoall, Kind::kReducescatter}) {
        Request request = request_for<float>("x", 6, kind);
        if (kind == Kind::kAlltoall) request.sizes = {2, 2, 2};
        const Outcome outcome = run(engine, request, {{values.data(), nullptr, 6}});
        CHECK(outcome.status.code != Code::kOk);
      }
      auto mine = small_numbers<float>(rank, 5);
      CHECK(reduce_small(engine, "sum", mine, ReduceOp::kSum).status.message == "");
      CHECK(same_bytes(mine, reduced<float>({0, 1}, 5, ReduceOp::kSum)));
      CHECK(run(engine, plain_request(Kind::kJoin)).status.message == "");
    }
    check_usable(engine, "after");
  });
}

}  // namespace hvd::test
