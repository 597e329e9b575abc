// A15: no memory for a result on one rank: the operation fails on all ranks of its set with one
// error that names that rank, and the next one is right. Aligned memory, as results have, is
// replaced for this whole binary; requests fail only while a test wants them to.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engines.h"

namespace hvd::test {
namespace {

std::atomic<std::size_t> scarce{0};  // requests of at least so many bytes are counted; 0: none
std::atomic<long> granted{0};        // so many of them are still granted
std::atomic<bool> only_once{false};  // what comes after the first that failed is granted again
std::atomic<long> refused{0};

bool shall_fail(std::size_t bytes) {
  const std::size_t least = scarce.load();
  if (least == 0 || bytes < least) return false;
  const long left = granted.fetch_sub(1);
  if (left > 0 || (only_once.load() && left < 0)) return false;
  refused.fetch_add(1);
  return true;
}

void* aligned(std::size_t bytes, std::align_val_t alignment) {
  const auto step = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(step, (bytes / step + 1) * step);  // NOLINT
}

}  // namespace
}  // namespace hvd::test

[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment,
                                       const std::nothrow_t& /*unused*/) noexcept {
  return hvd::test::shall_fail(bytes) ? nullptr : hvd::test::aligned(bytes, alignment);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  if (void* const memory = hvd::test::aligned(bytes, alignment)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t /*unused*/) noexcept {
  std::free(memory);  // NOLINT
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t /*unused*/,
                                         std::align_val_t /*unused*/) noexcept {
  std::free(memory);  // NOLINT
}

namespace hvd::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20U;

void lack(std::size_t least, long first, bool once) {
  refused.store(0);
  granted.store(first);
  only_once.store(once);
  scarce.store(least);
}

// Memory is there again at the end.
struct Scarcity {
  Scarcity(std::size_t least, long first, bool once) { lack(least, first, once); }
  ~Scarcity() { scarce.store(0); }
  Scarcity(const Scarcity&) = delete;
  Scarcity& operator=(const Scarcity&) = delete;
};

Engines engines_over(const char* transport, int size) {
  if (std::string(transport) == "threads") return engines_of(size);
  return connected_engines(size, [&](int) { return Table{{"transport", transport}}; });
}

// Every rank that took part names `rank`, in these words; nothing is left of the operation.
void check_refused(const std::vector<Outcome>& outcomes, int rank, const std::string& what) {
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status.message ==
          "rank " + std::to_string(rank) + " has no memory for the " + what);
    CHECK(outcome.status.code == Code::kNoMemory);
    CHECK(outcome.status.rank == rank);
    CHECK(outcome.outputs.empty());
    CHECK(outcome.sizes.empty());
  }
}

constexpr std::int64_t kColumns = 1024;
constexpr std::int64_t kManyRows = 700;

// One row from everybody to everybody, 700 from everybody to `crowded`; a rank's rows hold its
// number.
Outcome exchange(Engine& engine, int crowded) {
  const int rank = engine.topology().rank, size = engine.topology().size;
  Request request = plain_request(Kind::kAlltoall, "alltoall.a");
  std::int64_t rows = 0;
  for (int to = 0; to < size; ++to) {
    request.sizes.push_back(to == crowded ? kManyRows : 1);
    rows += request.sizes.back();
  }
  request.tensors = {meta_of<std::uint8_t>({rows, kColumns})};
  const std::vector<std::uint8_t> in(static_cast<std::size_t>(rows * kColumns),
                                     static_cast<std::uint8_t>(rank + 1));
  return run(engine, request, {{in.data(), nullptr, in.size()}});
}

void check_exchanged(const Outcome& outcome, int rank, int size, int crowded) {
  CHECK(outcome.status.message == "");
  const std::int64_t rows = rank == crowded ? kManyRows : 1;
  std::vector<std::uint8_t> expected;
  for (int from = 0; from < size; ++from) {
    expected.insert(expected.end(), static_cast<std::size_t>(rows * kColumns),
                    static_cast<std::uint8_t>(from + 1));
  }
  CHECK(outcome.sizes == std::vector<std::int64_t>(static_cast<std::size_t>(size), rows));
  REQUIRE(outcome.outputs.size() == 1);
  const Buffer& got = *outcome.outputs.front();
  REQUIRE(got.bytes == expected.size());
  CHECK(std::memcmp(got.data(), expected.data(), got.bytes) == 0);
}

// Every rank's floats, `tensors` times; tensor t of rank r: r + 10 t.
Outcome gather(Engine& engine, std::size_t count, std::size_t tensors) {
  Request request = plain_request(Kind::kAllgather, "allgather.g");
  std::vector<std::vector<float>> values;
  std::vector<Operand> operands;
  for (std::size_t t = 0; t < tensors; ++t) {
    const auto value =
        static_cast<float>(static_cast<std::size_t>(engine.topology().rank) + 10 * t);
    values.emplace_back(count, value);
    request.tensors.push_back(meta_of<float>({static_cast<std::int64_t>(count)}));
    operands.push_back({values.back().data(), nullptr, count});
  }
  return run(engine, request, operands);
}

void check_gathered(const Outcome& outcome, std::size_t size, std::size_t count,
                    std::size_t tensors) {
  CHECK(outcome.status.message == "");
  REQUIRE(outcome.outputs.size() == tensors);
  for (std::size_t t = 0; t < tensors; ++t) {
    std::vector<float> expected;
    for (std::size_t r = 0; r < size; ++r)
      expected.insert(expected.end(), count, static_cast<float>(r + 10 * t));
    const Buffer& got = *outcome.outputs[t];
    REQUIRE(got.bytes == expected.size() * sizeof(float));
    CHECK(std::memcmp(got.data(), expected.data(), got.bytes) == 0);
  }
}

}  // namespace

TEST_CASE(
    "engine: A15: no memory for an alltoall's result: the same error everywhere, the next "
    "succeeds") {
  struct Row {
    const char* transport;
    int size;
    const char* needed;
  };
  constexpr Row kRows[] = {{"threads", 2, "1.4 MB"},
                           {"threads", 3, "2.2 MB"},
                           {"threads", 5, "3.6 MB"},
                           {"shm", 3, "2.2 MB"},
                           {"tcp", 3, "2.2 MB"}};
  for (const Row& row : kRows) {
    const int size = row.size;
    CAPTURE(row.transport);
    Engines engines = engines_over(row.transport, size);
    for (int crowded = 0; crowded < size; ++crowded) {
      std::vector<Outcome> outcomes(engines.size());
      {
        const Scarcity scarcity(kMiB, 0, false);
        run_ranks(size, [&](int rank) {
          const auto at = static_cast<std::size_t>(rank);
          outcomes[at] = exchange(*engines[at], crowded);
        });
        CHECK(refused.load() == 1);
      }
      check_refused(outcomes, crowded, std::string(row.needed) + " output of alltoall 'a'");
      run_ranks(size, [&](int rank) {
        Engine& engine = *engines[static_cast<std::size_t>(rank)];
        check_usable(engine, "sum");
        check_exchanged(exchange(engine, crowded), rank, size, crowded);
      });
    }
    on_every_rank(engines, [](Engine& engine, int) { check_usable(engine, "end"); });
  }
}

TEST_CASE("engine: A15: any failed allocation of a grouped allgather fails it on all ranks") {
  constexpr std::size_t kCount = 200'000;  // 0.8 MB
  constexpr std::size_t kTensors = 2;
  for (const int size : {2, 4}) {
    Engines engines = engines_of(size);
    const std::string what = std::string(size == 2 ? "3.2" : "6.4") + " MB output of allgather 'g'";
    for (long nth = 0; nth < size * static_cast<long>(kTensors); ++nth) {
      CAPTURE(nth);
      std::vector<Outcome> outcomes(engines.size());
      {
        const Scarcity scarcity(kMiB, nth, true);
        run_ranks(size, [&](int rank) {
          const auto at = static_cast<std::size_t>(rank);
          outcomes[at] = gather(*engines[at], kCount, kTensors);
        });
        CHECK(refused.load() == 1);
      }
      const int failing = outcomes.front().status.rank;
      CHECK(failing >= 0);
      CHECK(failing < size);
      check_refused(outcomes, failing, what);
      run_ranks(size, [&](int rank) {
        Engine& engine = *engines[static_cast<std::size_t>(rank)];
        check_gathered(gather(engine, kCount, kTensors), engines.size(), kCount, kTensors);
      });
    }
    on_every_rank(engines, [](Engine& engine, int) { check_usable(engine, "end"); });
  }
}

TEST_CASE("engine: A15: the error names the first of several ranks without memory") {
  Engines engines = engines_of(3);
  std::vector<Outcome> outcomes(3);
  {
    const Scarcity scarcity(kMiB, 0, false);
    run_ranks(3, [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      outcomes[at] = gather(*engines[at], 200'000, 1);
    });
    CHECK(refused.load() == 3);
  }
  check_refused(outcomes, 0, "2.4 MB output of allgather 'g'");
  on_every_rank(engines, [](Engine& engine, int) { check_usable(engine, "after"); });
}

TEST_CASE("engine: A15: fused operations fail together, and concurrent ones do not") {
  constexpr std::size_t kCount = 150'000;
  constexpr std::size_t kGathered = 2 * kCount * sizeof(float);
  // They are carried out when the third has come, and no sooner.
  const Table table{{"cycle_time_ms", "60000"},
                    {"fusion_threshold", std::to_string(2 * kGathered + kCount * sizeof(float))}};
  Engines engines = engines_of(2, table);
  std::vector<Outcome> outcomes(4);
  const Scarcity scarcity(kMiB, 3, true);  // the last of four
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<float> mine(kCount, static_cast<float>(rank));
    auto summed = small_numbers<float>(rank, kCount);
    const auto ask = [&](const std::string& name) {
      const auto handle = engine.enqueue(request_for<float>(name, kCount, Kind::kAllgather),
                                         {{mine.data(), nullptr, kCount}});
      REQUIRE(handle.status().message == "");
      return handle.value();
    };
    const std::int64_t x = ask("x");
    const std::int64_t sum = start_sum(engine, "sum", summed);
    const std::int64_t y = ask("y");
    outcomes[static_cast<std::size_t>(rank)] = outcome_of(engine, x);
    outcomes[static_cast<std::size_t>(rank) + 2] = outcome_of(engine, y);
    CHECK(outcome_of(engine, sum).status.message == "");
    CHECK(same_bytes(summed, reduced<float>({0, 1}, kCount, ReduceOp::kSum)));
    CHECK(run(engine, plain_request(Kind::kBarrier)).status.message == "");
  });
  CHECK(refused.load() == 1);
  const std::string& received = outcomes.front().status.message;
  CHECK(received.find("2.4 MB output of allgather '") != std::string::npos);
  CHECK(received.find("' and 1 more") != std::string::npos);
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.status.message == received);
    CHECK(outcome.status.rank == outcomes.front().status.rank);
    CHECK(outcome.outputs.empty());
  }
}

TEST_CASE("engine: A15: in a process set: its ranks get the error, the other ranks continue") {
  Engines engines = engines_of(4);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const int set = add_set(engine, {1, 3});
    if (rank % 2 == 1) {
      // Of 1.6 MB, and only rank 3 needs so much.
      std::vector<float> in(200'001);
      Request request = plain_request(Kind::kAlltoall, "a", set);
      request.tensors = {meta_of<float>({200'001})};
      request.sizes = {1, 200'000};
      if (rank == 3) lack(kMiB, 0, false);
      CHECK(run(engine, plain_request(Kind::kBarrier, "armed", set)).status.message == "");
      std::vector<Outcome> mine(1);
      mine[0] = run(engine, request, {{in.data(), nullptr, in.size()}});
      check_refused(mine, 3, "1.6 MB output of alltoall 'a'");
      if (rank == 3) scarce.store(0);
    }
    check_usable(engine, "all");
  });
  CHECK(refused.load() == 1);
}

TEST_CASE("engine: A15: the other ranks' error names a joined rank that lacks memory") {
  constexpr std::size_t kCount = 500'000;  // 2 MB
  Engines engines = engines_of(3);
  const Scarcity scarcity(kMiB, 0, true);
  std::atomic<bool> joined{false};
  on_every_rank(engines, [&](Engine& engine, int rank) {
    if (rank == 1) {
      const auto handle = engine.enqueue(plain_request(Kind::kJoin), {});
      REQUIRE(handle.is_ok());
      joined.store(true);
      CHECK(outcome_of(engine, handle.value()).status.message == "");
      return;
    }
    while (!joined.load()) std::this_thread::yield();
    const auto before = small_numbers<float>(rank, kCount);
    auto values = before;
    std::vector<Outcome> mine(1);
    mine[0] = outcome_of(engine, start_sum(engine, "allreduce.x", values));
    check_refused(mine, 1, "2.0 MB stand-in for allreduce 'x'");
    CHECK(same_bytes(values, before));
    CHECK(outcome_of(engine, start_sum(engine, "allreduce.x", values)).status.message == "");
    CHECK(same_bytes(values, reduced<float>({0, 2}, kCount, ReduceOp::kSum)));
    CHECK(run(engine, plain_request(Kind::kJoin)).status.message == "");
  });
  CHECK(refused.load() == 1);
}

TEST_CASE("engine: A15: with one rank it is an error too, and the engine continues") {
  Engines engines = engines_of(1);
  std::vector<Outcome> outcomes(1);
  {
    const Scarcity scarcity(kMiB, 0, false);
    outcomes[0] = gather(*engines[0], 500'000, 1);
  }
  check_refused(outcomes, 0, "2.0 MB output of allgather 'g'");
  check_gathered(gather(*engines[0], 500'000, 1), 1, 500'000, 1);
}

TEST_CASE("engine: A15: without memory for small allocations all ranks end, with the rank's name") {
  Engines engines = engines_of(3);
  const Scarcity scarcity(1000, 1, true);
  std::vector<Status> causes(3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Status& cause = causes[static_cast<std::size_t>(rank)];
    cause = gather(engine, 1000, 1).status;
    CHECK(engine.ended().code == Code::kUnavailable);
  });
  CHECK(refused.load() == 1);
  for (const Status& cause : causes) {
    CHECK(cause.code == Code::kUnavailable);
    CHECK(cause.message == causes.front().message);
    CHECK(cause.rank == causes.front().rank);
    CHECK(cause.rank >= 0);
  }
}

}  // namespace hvd::test
