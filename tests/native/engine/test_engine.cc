// Whole engines, ranks as threads: what a frontend sees.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <random>
#include <set>

#include "engines.h"

namespace hvd::test {

TEST_CASE_TEMPLATE("engine: sums and averages are exact for every dtype", T, std::uint8_t,
                   std::int32_t, std::int64_t, Float16, Bfloat16, float, double) {
  for (int size = 1; size <= 4; ++size) {
    Engines engines = engines_of(size, {{"slot_bytes", "256"}});
    on_every_rank(engines, [&](Engine& engine, int rank) {
      auto sum = input_of<T>(rank, 0, 1009);
      auto average = input_of<T>(rank, 1, 77);
      const auto first = start_sum(engine, "sum", sum);
      const auto second = start_sum(engine, "average", average, ReduceOp::kAverage);
      CHECK(outcome_of(engine, second).status.message == "");
      CHECK(outcome_of(engine, first).status.message == "");
      CHECK(same_bytes(sum, expected_sums<T>(size, 0, 1009)));
      CHECK(same_bytes(average, expected_sums<T>(size, 1, 77, true)));
    });
  }
}

TEST_CASE("engine: any order of submission, with and without fusion, any slots: the same bytes") {
  const int size = 3;
  const std::size_t tensors = 40;
  for (const auto& table : std::vector<std::map<std::string, std::string>>{
           {},
           {{"fusion_threshold", "0"}},
           {{"fusion_threshold", "4096"}, {"slot_bytes", "64"}, {"slots", "2"}},
           {{"cycle_time_ms", "2"}}}) {
    Engines engines = engines_of(size, table);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      std::vector<std::size_t> order(tensors);
      for (std::size_t i = 0; i < tensors; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank)));
      std::vector<std::vector<float>> values(tensors);
      std::vector<std::int64_t> handles(tensors);
      for (const std::size_t i : order) {
        values[i] = input_of<float>(rank, i, i * i % 257);
        handles[i] = start_sum(engine, "t" + std::to_string(i), values[i]);
      }
      for (std::size_t i = 0; i < tensors; ++i) {
        CHECK(outcome_of(engine, handles[i]).status.message == "");
        CHECK(same_bytes(values[i], expected_sums<float>(size, i, values[i].size())));
      }
    });
  }
}

TEST_CASE("engine: a mismatch reaches every rank, and other operations complete") {
  const int size = 3;
  Engines engines = engines_of(size);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto floats = input_of<float>(rank, 0, 8);
    auto ints = input_of<std::int32_t>(rank, 0, 8);
    auto good = input_of<float>(rank, 5, 100);
    const auto bad = rank == 1 ? start_sum(engine, "x", ints) : start_sum(engine, "x", floats);
    const auto fine = start_sum(engine, "fine", good);
    const Outcome outcome = outcome_of(engine, bad);
    CHECK(outcome.status.code == Code::kMismatch);
    CHECK(outcome.status.rank == 1);
    CHECK(outcome.status.message ==
          "Mismatched data types: One rank had type float32, but another rank had type int32. "
          "(ranks 0, 2: float32; rank 1: int32)");
    CHECK(outcome_of(engine, fine).status.is_ok());
    CHECK(same_bytes(good, expected_sums<float>(size, 5, 100)));
    CHECK(same_bytes(floats, input_of<float>(rank, 0, 8)));
    check_usable(engine, "x");
  });
}

TEST_CASE("engine: a name in flight is refused at once, on this rank alone") {
  Engines engines = engines_of(2);
  std::atomic<bool> tried{false};
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto values = input_of<float>(rank, 0, 8);
    if (rank == 1) {
      while (!tried.load()) std::this_thread::yield();
    }
    const auto handle = start_sum(engine, "same", values);
    if (rank == 0) {
      auto other = values;
      const auto twice =
          engine.enqueue(request_for<float>("same", 8), {{other.data(), other.data(), 8}});
      CHECK(twice.status().code == Code::kInvalidArgument);
      CHECK(twice.status().message.find(
                "the same name as another tensor that is currently being processed") !=
            std::string::npos);
      REQUIRE(engine.pending().size() == 1);
      CHECK(engine.pending()[0].name == "same");
      tried.store(true);
    }
    CHECK(outcome_of(engine, handle).status.is_ok());
    CHECK(same_bytes(values, expected_sums<float>(2, 0, 8)));
    check_usable(engine, "same");
    CHECK(engine.pending().empty());
  });
}

TEST_CASE("engine: rank 0 knows the missing ranks") {
  Engines engines = engines_of(3);
  std::atomic<bool> seen{false};
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto values = input_of<float>(rank, 0, 8);
    if (rank == 1) {
      while (!seen.load()) std::this_thread::yield();
    }
    const auto handle = start_sum(engine, "x", values);
    if (rank == 0) {
      std::vector<Pending> pending;
      while (pending.empty() || pending[0].missing != std::vector<int>{1}) {
        pending = engine.pending();
        std::this_thread::yield();
      }
      CHECK(pending[0].name == "x");
      CHECK(pending[0].kind == Kind::kAllreduce);
      seen.store(true);
    }
    CHECK(outcome_of(engine, handle).status.is_ok());
  });
}

TEST_CASE(
    "engine: wrong arguments are refused by the call itself; handles are counted all the same") {
  Engines engines = engines_of(1);
  Engine& engine = *engines[0];
  std::vector<float> values(4);
  const auto refused = [&](const Request& request, const Operand& operand) {
    const auto result = engine.enqueue(request, {operand});
    CHECK(result.status().code == Code::kInvalidArgument);
    return result.status().message;
  };
  const Operand operand{values.data(), values.data(), 4};
  Request request = request_for<float>("x", 4);
  request.op = ReduceOp::kMin;
  request.tensors[0].dtype = Dtype::kComplex64;
  CHECK(refused(request, operand).find("complex64") != std::string::npos);
  request = request_for<float>("x", 4, Kind::kBroadcast);
  request.root = 99;
  CHECK(refused(request, operand) ==
        "broadcast received invalid root rank 99 for provided process set");
  request = request_for<float>("x", 4);
  request.tensors[0].dtype = Dtype::kFloat8E4m3;
  CHECK(refused(request, operand).find("float8") != std::string::npos);
  CHECK(refused(request_for<float>("x", 4), {nullptr, nullptr, 4}).find("null") !=
        std::string::npos);
  request = request_for<float>("x", 4);
  request.tensors[0].shape = {1LL << 40, 1LL << 40};
  CHECK(refused(request, operand).find("shape") != std::string::npos);
  request = request_for<float>("x", 1, Kind::kAllgather);
  request.tensors[0].shape = {};
  CHECK(refused(request, operand).find("dimension") != std::string::npos);
  const auto handle = engine.enqueue(request_for<float>("", 4), {operand});
  CHECK(handle.value() == 6);
  CHECK(outcome_of(engine, 6).status.is_ok());
  CHECK(engine.poll(6).status().message == "Handle 6 was not created or has been cleared.");
  CHECK_FALSE(engine.wait(77, std::chrono::seconds(1)).is_ok());
}

TEST_CASE(
    "engine: an abort releases every rank with its reason, also from inside the ring, and for "
    "ever") {
  const int size = 3;
  for (const bool large : {false, true}) {
    Engines engines = engines_of(size, {{"slot_bytes", "64"}});
    // Some ten thousand slots, so that the ring turns until the abort, however late that comes.
    const Armed armed(large ? "slot.after_publish:delay=1" : "");
    on_every_rank(engines, [&](Engine& engine, int rank) {
      std::vector<float> values(large ? 1000000 : 10);
      // Rank 2 never comes, or comes and aborts while the ring turns.
      const auto handle = rank == 2 && !large ? -1 : start_sum(engine, "x", values);
      if (rank == 2) engine.abort("ValueError: boom");
      if (handle >= 0) {
        const Outcome outcome = outcome_of(engine, handle);
        CHECK(outcome.status.code == Code::kAborted);
        CHECK(outcome.status.rank == 2);
        CHECK(outcome.status.message == "Rank 2 failed: ValueError: boom");
      }
      std::vector<float> later(4);
      const Outcome outcome = outcome_of(engine, start_sum(engine, "later", later));
      CHECK(outcome.status.code == Code::kAborted);
      CHECK(engine.ended().code == Code::kAborted);
    });
  }
}

TEST_CASE("engine: the error of a wait names the rank that has shut down") {
  const int size = 3;
  for (const int leaver : {0, 2}) {
    Engines engines = engines_of(size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      check_usable(engine, "before");
      if (rank == leaver) return;
      std::vector<float> values(4);
      for (const char* name : {"x", "y"}) {
        const Outcome outcome = outcome_of(engine, start_sum(engine, name, values));
        CHECK(outcome.status.code == Code::kShutdown);
        CHECK(outcome.status.rank == leaver);
        CHECK(outcome.status.message.find("Horovod has been shut down.") == 0);
        CHECK(outcome.status.message.find("Rank " + std::to_string(leaver)) != std::string::npos);
      }
    });
  }
}

TEST_CASE("engine: shutdown with pending work ends it on all ranks, and is idempotent") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<float> values(4);
    const auto handle = start_sum(engine, "only rank " + std::to_string(rank), values);
    engine.shutdown();
    engine.shutdown();
    CHECK(outcome_of(engine, handle).status.code == Code::kShutdown);
    CHECK(outcome_of(engine, start_sum(engine, "later", values)).status.code == Code::kShutdown);
    CHECK(engine.pending().empty());
    engine.abort("too late");
  });
}

TEST_CASE(
    "engine: ranks that finish and leave at different times never disturb each other's work") {
  for (int round = 0; round < 100; ++round) {
    const int size = 2 + round % 3;
    Engines engines = engines_of(size, {{"slot_bytes", "64"}, {"slots", "2"}});
    on_every_rank(engines, [&](Engine& engine, int rank) {
      auto first = input_of<float>(rank, 0, 500);
      auto second = input_of<std::int32_t>(rank, 1, 3);
      const auto a = start_sum(engine, "a", first);
      const auto b = start_sum(engine, "b", second);
      CHECK(outcome_of(engine, a).status.message == "");
      CHECK(outcome_of(engine, b).status.message == "");
      CHECK(same_bytes(first, expected_sums<float>(size, 0, 500)));
      CHECK(same_bytes(second, expected_sums<std::int32_t>(size, 1, 3)));
    });
  }
}

TEST_CASE("engine: many threads of a rank may call at once") {
  const int size = 2;
  const int threads = 4;
  Engines engines = engines_of(size);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<std::thread> callers;
    std::atomic<int> wrong{0};
    for (int t = 0; t < threads; ++t) {
      callers.emplace_back([&, t] {
        for (int round = 0; round < 30; ++round) {
          auto values = input_of<std::int64_t>(rank, static_cast<std::size_t>(t), 64);
          Request request = request_for<std::int64_t>("t" + std::to_string(t), 64);
          const auto handle = engine.enqueue(request, {{values.data(), values.data(), 64}});
          const auto result = engine.wait(handle.value(), std::chrono::seconds(30));
          if (!result || result.value() == nullptr || !result.value()->status ||
              !same_bytes(values,
                          expected_sums<std::int64_t>(size, static_cast<std::size_t>(t), 64))) {
            wrong.fetch_add(1);
          }
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(wrong.load() == 0);
    CHECK(engine.counters().ops.load() == threads * 30);
  });
}

TEST_CASE("engine: counters and trace record the operations") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto values = input_of<float>(rank, 0, 256);
    CHECK(outcome_of(engine, start_sum(engine, "grad", values)).status.is_ok());
    CHECK(engine.counters().ops.load() == 1);
    CHECK(engine.counters().bytes.load() == 1024);
    CHECK(engine.counters().busy_ns.load() > 0);
    std::uint64_t cursor = 0;
    const auto records = traced(engine, cursor);
    // On rank 0 first of all: who has asked.
    const std::size_t asked = rank == 0 ? 2 : 0;
    REQUIRE(records.size() == asked + 4);
    std::set<std::int64_t> ready;
    for (std::size_t i = 0; i < asked; ++i) {
      CHECK(std::string(records[i].phase) == "READY");
      CHECK(records[i].name == "grad");
      ready.insert(records[i].detail);
    }
    CHECK(ready.size() == asked);
    CHECK(std::string(records[asked].phase) == "NEGOTIATE_ALLREDUCE");
    const TraceRecord& op = records[asked + 1];
    CHECK(std::string(op.phase) == "ALLREDUCE");
    CHECK(op.name == "grad");
    CHECK(op.bytes == 1024);
    CHECK(op.detail == 1);  // one request
    CHECK(records[asked].start_ns + records[asked].duration_ns == op.start_ns);
    CHECK(std::string(op.dtype) == "");  // nobody writes a timeline
    CHECK(op.shape == "");
    const TraceRecord& queue = records[asked + 2];
    CHECK(std::string(queue.phase) == "QUEUE");
    CHECK(queue.start_ns == op.start_ns);
    const TraceRecord& algorithm = records[asked + 3];
    CHECK(std::string(algorithm.phase) != "");
    CHECK(algorithm.start_ns == queue.start_ns + queue.duration_ns);
    CHECK(algorithm.start_ns + algorithm.duration_ns == op.start_ns + op.duration_ns);
    CHECK(traced(engine, cursor).empty());
  });
}

TEST_CASE("engine: a wait for another rank is in the trace, with its counted length") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto values = input_of<float>(rank, 0, 256);
    while (rank == 1 && engines[0]->pending().empty()) std::this_thread::yield();
    const std::int64_t begin = now_ns();
    while (rank == 1 && now_ns() - begin < 20'000'000) std::this_thread::yield();
    CHECK(outcome_of(engine, start_sum(engine, "grad", values)).status.is_ok());
    std::uint64_t cursor = 0;
    std::int64_t waited = 0;
    for (const TraceRecord& record : engine.trace(cursor)) {
      if (!is_wait(record)) continue;
      CHECK(record.name == "grad");
      CHECK(record.duration_ns >= 20'000);
      waited += record.duration_ns;
    }
    const std::int64_t counted = engine.counters().wait_ns.load();
    CHECK(waited == (counted >= 20'000 ? counted : 0));
  });
}

// In real time; that an idle controller is due never, test_controller.cc has.
TEST_CASE("engine: idle engines use no processor time" * doctest::test_suite("nightly")) {
  const int size = 3;
  Engines engines = engines_of(size);
  run_ranks(size,
            [&](int rank) { check_usable(*engines[static_cast<std::size_t>(rank)], "warm"); });
  const auto cpu_ns = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  };
  const long long before = cpu_ns();
  const auto cycles = engines[0]->counters().cycles.load();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_ns() - before < 30'000'000);
  CHECK(engines[0]->counters().cycles.load() - cycles <= 5);  // one that polls has hundreds
  on_every_rank(engines, [](Engine& engine, int) { check_usable(engine, "end"); });
}

}  // namespace hvd::test
