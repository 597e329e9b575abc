// D1, D2: the bytes of a result depend on the inputs alone: not on the order of the calls, on
// delays, on fusion, on the cache, on algorithm or transport. All ranks have the same bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "engines.h"

namespace hvd::test {
namespace {

constexpr std::size_t kTensors = 24;

// Random, so that another order of additions gives other bytes.
template <typename T>
std::vector<T> noise(int rank, std::size_t tensor) {
  std::mt19937 random(static_cast<unsigned>(rank) * 1000U + static_cast<unsigned>(tensor));
  std::normal_distribution<double> normal(0, 1);
  std::vector<T> values(tensor * tensor * 7 % 701 + tensor % 3);
  for (T& value : values) value = of_real<T>(normal(random));
  return values;
}

template <typename T>
using Results = std::vector<std::vector<T>>;

// All tensors in this rank's own order, with delays, waited for in another order.
template <typename T>
Results<T> reduce_all(Engine& engine, int rank, unsigned seed, bool grouped) {
  std::mt19937 random(seed * 31U + static_cast<unsigned>(rank));
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  Results<T> values(kTensors);
  std::vector<std::int64_t> handles(kTensors, -1);
  for (const std::size_t i : order) {
    values[i] = noise<T>(rank, i);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (grouped && i < 6) continue;
    handles[i] = start_sum(engine, "t" + std::to_string(i), values[i]);
  }
  if (grouped) {
    Request request = plain_request(Kind::kAllreduce, "group");
    std::vector<Operand> operands;
    for (std::size_t i = 0; i < 6; ++i) {
      request.tensors.push_back(meta_of<T>({static_cast<std::int64_t>(values[i].size())}));
      operands.push_back(in_place(values[i]));
    }
    CHECK(run(engine, request, operands).status.message == "");
  }
  for (std::size_t i = 0; i < kTensors; ++i) {
    if (handles[i] >= 0) CHECK(outcome_of(engine, handles[i]).status.message == "");
  }
  return values;
}

// The reference: one after the other, no fusion, no cache.
template <typename T>
Results<T> reference(int size) {
  Results<T> results;
  Engines engines = engines_of(size, {{"fusion_threshold", "0"}, {"cache_capacity", "0"}});
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (std::size_t i = 0; i < kTensors; ++i) {
      auto values = noise<T>(rank, i);
      Request request = request_for<T>("alone", values.size());
      CHECK(run(engine, request, {in_place(values)}).status.message == "");
      if (rank == 0) results.push_back(values);
    }
  });
  return results;
}

template <typename T>
void check_config(int size, const Table& table, unsigned seed, const Results<T>& expected) {
  Engines engines = engines_of(size, table);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (unsigned step = 0; step < 3; ++step) {  // the second one comes from the cache
      const Results<T> results = reduce_all<T>(engine, rank, seed + step, step == 2);
      for (std::size_t i = 0; i < kTensors; ++i) CHECK(same_bytes(results[i], expected[i]));
    }
  });
}

}  // namespace

TEST_CASE_TEMPLATE("engine: D1 D2: any order, delays, fusion, cycle time, cache: the same bytes", T,
                   float, Float16) {
  for (const int size : {3, 4}) {
    const Results<T> expected = reference<T>(size);
    REQUIRE(expected.size() == kTensors);
    unsigned seed = 1;
    for (const char* fusion : {"0", "1024", "134217728"}) {
      for (const char* cycle : {"0", "1"}) {
        for (const char* cache : {"0", "1024"}) {
          CAPTURE(fusion);
          CAPTURE(cycle);
          CAPTURE(cache);
          check_config<T>(
              size,
              {{"fusion_threshold", fusion}, {"cycle_time_ms", cycle}, {"cache_capacity", cache}},
              seed += 10, expected);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("engine: D2: any algorithm, slot size and thread that carries it out", T, float,
                   Float16) {
  const int size = 3;
  const Results<T> expected = reference<T>(size);
  for (const Table& table : std::vector<Table>{{{"allreduce_algorithm", "direct"}},
                                               {{"allreduce_algorithm", "slices"}},
                                               {{"allreduce_algorithm", "ring"}},
                                               {{"slot_bytes", "64"}, {"slots", "2"}},
                                               {{"caller_runs_bytes", "0"}},
                                               {{"group_fusion", "0"}},
                                               {{"fanout", "1"}},
                                               {{"cache_capacity", "5"}}}) {
    CAPTURE(table.begin()->first);
    CAPTURE(table.begin()->second);
    check_config<T>(size, table, 7, expected);
  }
}

TEST_CASE("engine: D2: over shared memory and over sockets") {
  const int size = 3;
  const Results<float> expected = reference<float>(size);
  for (const char* transport : {"shm", "tcp"}) {
    Engines engines = connected_engines(size, [&](int) { return Table{{"transport", transport}}; });
    on_every_rank(engines, [&](Engine& engine, int rank) {
      const Results<float> results = reduce_all<float>(engine, rank, 3, true);
      for (std::size_t i = 0; i < kTensors; ++i) CHECK(same_bytes(results[i], expected[i]));
    });
  }
}

}  // namespace hvd::test
