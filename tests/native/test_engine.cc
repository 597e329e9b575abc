// Whole engines, ranks as threads: what a frontend sees.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
#include <random>

#include "engine/engine.h"
#include "ranks.h"
#include "test_collective_values.h"

namespace hvd::test {
namespace {

using Engines = std::vector<std::unique_ptr<Engine>>;

Engines engines_of(int size, const std::map<std::string, std::string>& table = {}) {
  Result<EngineOptions> options = parse_options(table);
  REQUIRE(options.status().message == "");
  Engines engines;
  for (auto& mesh : make_local_meshes(size, options.value().mesh)) {
    engines.push_back(std::make_unique<Engine>(std::move(mesh), options.value()));
  }
  return engines;
}

template <typename T>
Request request_for(const std::string& name, std::size_t count, Kind kind = Kind::kAllreduce) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.tensors = {{KindOf<T>::kDtype, kCpu, {static_cast<std::int64_t>(count)}}};
  return request;
}

template <typename T>
std::int64_t start_sum(Engine& engine, const std::string& name, std::vector<T>& values,
                       ReduceOp op = ReduceOp::kSum) {
  Request request = request_for<T>(name, values.size());
  request.op = op;
  const auto handle = engine.enqueue(request, {{values.data(), values.data(), values.size()}});
  REQUIRE(handle.status().message == "");
  return handle.value();
}

Outcome outcome_of(Engine& engine, std::int64_t handle) {
  auto result = engine.wait(handle, std::chrono::seconds(30));
  REQUIRE(result.status().message == "");
  REQUIRE((result.value() != nullptr));
  return *result.value();
}

// The engine still works on every rank.
void check_usable(Engine& engine, const std::string& name) {
  const int rank = engine.topology().rank;
  auto values = input_of<float>(rank, 9, 33);
  const Outcome outcome = outcome_of(engine, start_sum(engine, name, values));
  CHECK(outcome.status.message == "");
  CHECK(same_bytes(values, expected_sums<float>(engine.topology().size, 9, 33)));
}

void on_every_rank(Engines& engines, const std::function<void(Engine&, int)>& body) {
  run_ranks(static_cast<int>(engines.size()), [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    body(engine, rank);
    engine.shutdown();
  });
}

}  // namespace

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

TEST_CASE("engine: a group of mixed dtypes is one operation, all or nothing") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto a = input_of<float>(rank, 0, 100);
    auto b = input_of<std::int64_t>(rank, 1, 7);
    auto c = input_of<float>(rank, 2, 3);
    Request request = request_for<float>("group", 100);
    request.tensors.push_back({Dtype::kInt64, kCpu, {7}});
    request.tensors.push_back({Dtype::kFloat32, kCpu, {3}});
    const auto handle = engine.enqueue(
        request, {{a.data(), a.data(), 100}, {b.data(), b.data(), 7}, {c.data(), c.data(), 3}});
    REQUIRE(handle.is_ok());
    CHECK(outcome_of(engine, handle.value()).status.message == "");
    CHECK(same_bytes(a, expected_sums<float>(2, 0, 100)));
    CHECK(same_bytes(b, expected_sums<std::int64_t>(2, 1, 7)));
    CHECK(same_bytes(c, expected_sums<float>(2, 2, 3)));
    // One member differs: no member is touched.
    const auto before = input_of<float>(rank, 0, 100);
    a = before;
    request.name = "bad group";
    request.tensors[1].shape = {rank == 0 ? 7 : 6};
    const auto bad = engine.enqueue(request, {{a.data(), a.data(), 100},
                                              {b.data(), b.data(), rank == 0 ? 7U : 6U},
                                              {c.data(), c.data(), 3}});
    CHECK(outcome_of(engine, bad.value()).status.code == Code::kMismatch);
    CHECK(same_bytes(a, before));
    check_usable(engine, "after");
  });
}

TEST_CASE("engine: broadcast, allgather with different rows, barrier") {
  for (int size = 1; size <= 4; ++size) {
    Engines engines = engines_of(size, {{"slot_bytes", "128"}});
    on_every_rank(engines, [&](Engine& engine, int rank) {
      auto values = input_of<double>(rank, 0, 50);
      Request request = request_for<double>("b", 50, Kind::kBroadcast);
      request.root = size - 1;
      auto handle = engine.enqueue(request, {{values.data(), values.data(), 50}});
      CHECK(outcome_of(engine, handle.value()).status.message == "");
      CHECK(same_bytes(values, input_of<double>(size - 1, 0, 50)));

      Request gather = request_for<std::int32_t>("g", 0, Kind::kAllgather);
      gather.tensors[0].shape = {rank * 2, 3};
      const auto rows = static_cast<std::size_t>(rank) * 2;
      auto mine = input_of<std::int32_t>(rank, 1, rows * 3);
      handle = engine.enqueue(gather, {{mine.data(), nullptr, mine.size()}});
      const Outcome gathered = outcome_of(engine, handle.value());
      CHECK(gathered.status.message == "");
      REQUIRE((gathered.output != nullptr));
      CHECK(gathered.output->shape == std::vector<std::int64_t>{size * (size - 1), 3});
      std::vector<std::int32_t> expected;
      for (int r = 0; r < size; ++r) {
        const auto block = input_of<std::int32_t>(r, 1, static_cast<std::size_t>(r) * 6);
        expected.insert(expected.end(), block.begin(), block.end());
      }
      REQUIRE(gathered.output->bytes == expected.size() * 4);
      CHECK((expected.empty() ||
             std::memcmp(gathered.output->data(), expected.data(), gathered.output->bytes) == 0));

      Request barrier;
      barrier.name = "barrier";
      handle = engine.enqueue(barrier, {});
      CHECK(outcome_of(engine, handle.value()).status.message == "");
    });
  }
}

TEST_CASE("engine: a barrier lets nobody out before everybody is in") {
  const int size = 4;
  Engines engines = engines_of(size);
  std::atomic<int> inside{0};
  on_every_rank(engines, [&](Engine& engine, int) {
    for (int round = 0; round < 50; ++round) {
      inside.fetch_add(1);
      Request barrier;
      barrier.name = "barrier";
      CHECK(outcome_of(engine, engine.enqueue(barrier, {}).value()).status.is_ok());
      CHECK(inside.load() >= size * (round + 1));
    }
  });
}

TEST_CASE("engine: a mismatch reaches every rank and harms nothing else") {
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
          "Mismatched data types: One rank had type float32, but another rank had type int32.");
    CHECK(outcome_of(engine, fine).status.is_ok());
    CHECK(same_bytes(good, expected_sums<float>(size, 5, 100)));
    CHECK(same_bytes(floats, input_of<float>(rank, 0, 8)));
    check_usable(engine, "x");
  });
}

TEST_CASE("engine: a name that is in flight is refused at once, on this rank alone") {
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

TEST_CASE("engine: rank 0 knows who is missing") {
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
  CHECK(refused(request, operand) == "allreduce with op Min is not available; use Sum or Average");
  request = request_for<float>("x", 4, Kind::kBroadcast);
  request.root = 99;
  CHECK(refused(request, operand) ==
        "broadcast received invalid root rank 99 for provided process set");
  request = request_for<float>("x", 4);
  request.tensors[0].dtype = Dtype::kBool;
  CHECK(refused(request, operand).find("bool") != std::string::npos);
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

TEST_CASE("engine: who waits for a rank that has shut down is told so") {
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

TEST_CASE("engine: shutting down with work pending ends it here and there, and is idempotent") {
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

TEST_CASE("engine: counters and trace tell what happened") {
  Engines engines = engines_of(2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    auto values = input_of<float>(rank, 0, 256);
    CHECK(outcome_of(engine, start_sum(engine, "grad", values)).status.is_ok());
    CHECK(engine.counters().ops.load() == 1);
    CHECK(engine.counters().bytes.load() == 1024);
    CHECK(engine.counters().busy_ns.load() > 0);
    std::uint64_t cursor = 0;
    const auto records = engine.trace(cursor);
    REQUIRE(records.size() == 2);
    CHECK(std::string(records[0].phase) == "NEGOTIATE_ALLREDUCE");
    CHECK(std::string(records[1].phase) == "ALLREDUCE");
    CHECK(records[1].name == "grad");
    CHECK(records[1].bytes == 1024);
    CHECK(records[0].start_ns + records[0].duration_ns == records[1].start_ns);
    CHECK(engine.trace(cursor).empty());
  });
}

TEST_CASE("engine: idle engines use no processor time") {
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
  CHECK(engines[0]->counters().cycles.load() - cycles <= 2);
  on_every_rank(engines, [](Engine& engine, int) { check_usable(engine, "end"); });
}

TEST_CASE(
    "engine: options are read by name; unknown names and bad values are refused with the culprit") {
  const auto message = [](const std::map<std::string, std::string>& table) {
    const auto options = parse_options(table);
    CHECK(options.status().code == Code::kInvalidArgument);
    return options.status().message;
  };
  CHECK(message({{"slotbytes", "1"}})
            .find("unknown engine option \"slotbytes\"; known are cycle_time_ms") == 0);
  CHECK(message({{"slots", "four"}}) == "engine option slots=\"four\": expected a whole number");
  CHECK(message({{"slots", "-1"}}).find("slots") != std::string::npos);
  CHECK(message({{"transport", "ipx"}}).find("auto, shm or tcp") != std::string::npos);
  CHECK(message({{"cycle_time_ms", "nan"}}).find("cycle_time_ms") != std::string::npos);
  const auto good = parse_options({{"transport", "tcp"},
                                   {"slot_bytes", "4096"},
                                   {"slots", "8"},
                                   {"start_timeout_s", "1.5"},
                                   {"fusion_threshold", "0"},
                                   {"cycle_time_ms", "0.5"},
                                   {"tcp_interface", "127.0.0.1"},
                                   {"trace_capacity", "16"}});
  REQUIRE(good.is_ok());
  CHECK(good.value().mesh.slot_bytes == 4096);
  CHECK(good.value().mesh.start_timeout_s == 1.5);
  CHECK(good.value().cycle_time_ns == 500000);
}

}  // namespace hvd::test
