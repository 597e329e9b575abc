// Many threads at once: plugins with callbacks, callers that wait, chains within done.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <deque>
#include <thread>

#include "framework.h"

namespace hvd::test {
namespace {

constexpr int kRanks = 3, kThreads = 3, kRounds = 60;

// Each thread has its own names; every second operation is followed by another within its `done`.
void plug(hvd_engine* engine, int thread) {
  const int rank = core().rank(engine);
  std::deque<Told> told(2 * kRounds);
  std::deque<std::vector<float>> values;
  std::deque<std::string> names;
  for (int i = 0; i < 2 * kRounds; ++i) {
    values.emplace_back(static_cast<std::size_t>(i % 7 * 100 + 1), static_cast<float>(rank + i));
    names.push_back(std::to_string(thread) + "." + std::to_string(i));
  }
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  for (int i = 0; i < kRounds; ++i) {
    const std::size_t next = at(kRounds + i);
    told[at(i)].meanwhile = [&, next] {
      CHECK(ask_sum(engine, names[next].c_str(), values[next], told[next]) == "");
    };
    REQUIRE(ask_sum(engine, names[at(i)].c_str(), values[at(i)], told[at(i)]) == "");
  }
  for (int i = 0; i < 2 * kRounds; ++i) {
    told[at(i)].check();
    const auto expected = static_cast<float>(kRanks * i + kRanks * (kRanks - 1) / 2);
    CHECK(values[at(i)] == std::vector<float>(values[at(i)].size(), expected));
  }
}

// As Python does, which may carry out what others have asked for.
void call_and_wait(Engine& engine) {
  const int rank = engine.topology().rank;
  for (int i = 0; i < kRounds; ++i) {
    std::vector<float> values(5, static_cast<float>(rank));
    CHECK(run(engine, request_for<float>("call", 5), {in_place(values)}).status.message == "");
    CHECK(values == std::vector<float>(5, 3.0F));
  }
}

}  // namespace

TEST_CASE("table: plugins on several threads beside a caller that waits") {
  on_ranks(kRanks, [](hvd_engine* engine, int) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([=] { plug(engine, i); });
    call_and_wait(*engine->engine);
    for (std::thread& thread : threads) thread.join();
    CHECK(engine->engine->pending().empty());
  });
}

TEST_CASE("table: a small operation runs on the requesting thread") {
  on_ranks(2, [](hvd_engine* engine, int rank) {
    const auto here = std::this_thread::get_id();
    bool inline_once = false;  // a rank may rightly be late for some
    std::vector<float> found(1);
    while (found[0] < 2) {  // until it has been so on both
      std::vector<float> values(3, static_cast<float>(rank + 1));
      Told told;
      std::thread::id teller;
      told.meanwhile = [&] { teller = std::this_thread::get_id(); };
      REQUIRE(ask_sum(engine, "x", values, told) == "");
      told.check();
      CHECK(values == std::vector<float>(3, 3.0F));
      inline_once = inline_once || teller == here;
      found = {inline_once ? 1.0F : 0.0F};
      Told agreed;
      REQUIRE(ask_sum(engine, "found", found, agreed) == "");
      agreed.check();
    }
    CHECK(engine->engine->counters().caller_runs.load() > 0);
  });
}

TEST_CASE("table: a requesting thread returns though other ranks are late") {
  const EngineOptions options = options_of({});
  std::vector<hvd_engine*> engines;
  for (auto& mesh : make_local_meshes(2, options.mesh)) {
    engines.push_back(new hvd_engine{std::make_shared<Engine>(std::move(mesh), options)});
  }
  constexpr std::size_t kCalls = 100;  // also where trying has been in vain for long
  std::array<std::deque<Told>, 2> told{std::deque<Told>(kCalls), std::deque<Told>(kCalls)};
  std::array<std::vector<float>, 2> values{std::vector<float>(1), std::vector<float>(1)};
  for (std::size_t i = 0; i < kCalls; ++i) {
    for (std::size_t rank = 0; rank < 2; ++rank) {  // one thread asks for both, one after the other
      values[rank] = {static_cast<float>(rank + 1)};
      REQUIRE(ask_sum(engines[rank], "x", values[rank], told[rank][i]) == "");
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      told[rank][i].check();
      CHECK(values[rank][0] == 3.0F);
    }
  }
  run_ranks(2, [&](int rank) {
    core().shutdown(engines[static_cast<std::size_t>(rank)]);
    core().release(engines[static_cast<std::size_t>(rank)]);
  });
}

TEST_CASE("table: the current engine changes while threads query it") {
  on_ranks(1, [](hvd_engine* engine, int) {
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        while (!over) {
          hvd_engine* const found = core().current();
          if (found != nullptr) CHECK(core().size(found) == 1);
          core().release(found);
        }
      });
    }
    for (int i = 0; i < 2000; ++i) core().make_current(i % 2 == 0 ? engine : nullptr);
    over = true;
    for (std::thread& thread : threads) thread.join();
    core().make_current(nullptr);
  });
}

}  // namespace hvd::test
