// Not a check but a measurement, left out of ordinary runs:
//   engine_tests --no-skip -tc="latency*"
#include <doctest/doctest.h>

#include <cstdio>
#include <ctime>

#include "engines.h"

namespace hvd::test {
namespace {

struct Cost {
  double us = 0;      // of the clock, per call
  double cpu_us = 0;  // of the processor, of rank 0's calling thread
};

std::int64_t cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

Cost cost_of_call(Engines& engines, int calls, std::size_t count, Next next) {
  Cost cost;
  run_ranks(static_cast<int>(engines.size()), [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    std::vector<float> values(count, 1.0F);
    std::int64_t begin = 0;
    std::int64_t cpu_begin = 0;
    for (int i = -calls / 10; i < calls; ++i) {
      if (i == 0) begin = now_ns();
      if (i == 0) cpu_begin = cpu_ns();
      Request request = request_for<float>("tensor", count);
      const auto handle = engine.enqueue(std::move(request), {in_place(values)}, next);
      const auto outcome = engine.wait(handle.value(), std::chrono::seconds(30));
      REQUIRE(outcome.value()->status.message == "");
    }
    if (rank != 0) return;
    cost.us = static_cast<double>(now_ns() - begin) / 1e3 / calls;
    cost.cpu_us = static_cast<double>(cpu_ns() - cpu_begin) / 1e3 / calls;
  });
  return cost;
}

}  // namespace

TEST_CASE("latency: a synchronous allreduce of 4 KiB" * doctest::skip()) {
  int size = 0;
  SUBCASE("1 rank") { size = 1; }
  SUBCASE("2 ranks") { size = 2; }
  SUBCASE("4 ranks") { size = 4; }
  for (const Next next : {Next::kWaits, Next::kContinues}) {
    Engines engines = engines_of(size);
    const Cost cost = cost_of_call(engines, 20000, 1024, next);
    const auto& counters = engines[0]->counters();
    std::printf(
        "%d ranks, %-17s %7.2f us per call (processor %.2f us); %lld of %lld by the caller, %lld "
        "cached\n",
        size, next == Next::kWaits ? "waits next:" : "enqueue, wait:", cost.us, cost.cpu_us,
        static_cast<long long>(counters.caller_runs.load()),
        static_cast<long long>(counters.ops.load()),
        static_cast<long long>(counters.cached.load()));
    run_ranks(size, [&](int rank) { engines[static_cast<std::size_t>(rank)]->shutdown(); });
  }
}

}  // namespace hvd::test
