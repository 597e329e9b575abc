// Whole engines, ranks as threads of this process: over local meshes, or over the links and sockets
// that processes use.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/failpoint.h"
#include "engine/engine.h"
#include "engine/timeline/timeline.h"
#include "ranks.h"
#include "test_collective_values.h"

namespace hvd::test {

// Failpoints for as long as it lives.
struct Armed {
  explicit Armed(const std::string& text) { arm_failpoints(text.c_str()); }
  ~Armed() { arm_failpoints(""); }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;
};

using Engines = std::vector<std::unique_ptr<Engine>>;
using Table = std::map<std::string, std::string>;

inline EngineOptions options_of(const Table& table) {
  Result<EngineOptions> options = parse_options(table);
  REQUIRE(options.status().message == "");
  options.value().mesh.flush_s = 60;  // a rank may get no core for a while
  return options.take();
}

inline Engines engines_of(int size, const Table& table = {}) {
  const EngineOptions options = options_of(table);
  Engines engines;
  for (auto& mesh : make_local_meshes(size, options.mesh)) {
    engines.push_back(std::make_unique<Engine>(std::move(mesh), options));
  }
  return engines;
}

// Over connect_mesh: each rank gets what `table_of` says.
inline Engines connected_engines(int size, const std::function<Table(int)>& table_of) {
  Engines engines(static_cast<std::size_t>(size));
  Meeting meeting(size);
  run_ranks(size, [&](int rank) {
    ThreadBootstrap bootstrap(meeting, rank);
    auto engine = Engine::start(rank, size, bootstrap, options_of(table_of(rank)));
    REQUIRE(engine.status().message == "");
    engines[static_cast<std::size_t>(rank)] = engine.take();
  });
  return engines;
}

inline void on_every_rank(Engines& engines, const std::function<void(Engine&, int)>& body) {
  run_ranks(static_cast<int>(engines.size()), [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    body(engine, rank);
    engine.shutdown();
  });
}

// What the trace has of operations from the cursor on: how long a thread waits is the machine's.
inline std::vector<TraceRecord> traced(Engine& engine, std::uint64_t& cursor) {
  std::vector<TraceRecord> records = engine.trace(cursor);
  records.erase(std::remove_if(records.begin(), records.end(), is_wait), records.end());
  return records;
}

inline Outcome outcome_of(Engine& engine, std::int64_t handle) {
  auto result = engine.wait(handle, std::chrono::seconds(30));
  REQUIRE(result.status().message == "");
  REQUIRE((result.value() != nullptr));
  return std::move(*result.value());
}

inline Outcome run(Engine& engine, Request request, std::vector<Operand> operands = {}) {
  const auto handle = engine.enqueue(std::move(request), std::move(operands), Next::kWaits);
  REQUIRE(handle.status().message == "");
  return outcome_of(engine, handle.value());
}

template <typename T>
TensorMeta meta_of(std::vector<std::int64_t> shape) {
  TensorMeta meta;
  meta.dtype = KindOf<T>::kDtype;
  meta.shape = std::move(shape);
  return meta;
}

template <typename T>
Operand in_place(std::vector<T>& values) {
  return {values.data(), values.data(), values.size()};
}

template <typename T>
Request request_for(const std::string& name, std::size_t count, Kind kind = Kind::kAllreduce) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.tensors = {meta_of<T>({static_cast<std::int64_t>(count)})};
  return request;
}

inline Request plain_request(Kind kind, const std::string& name = "", int set = 0) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.set = set;
  return request;
}

template <typename T>
std::int64_t start_sum(Engine& engine, const std::string& name, std::vector<T>& values,
                       ReduceOp op = ReduceOp::kSum, int set = 0) {
  Request request = request_for<T>(name, values.size());
  request.op = op;
  request.set = set;
  const auto handle = engine.enqueue(request, {in_place(values)});
  REQUIRE(handle.status().message == "");
  return handle.value();
}

// The engine still works on every rank.
inline void check_usable(Engine& engine, const std::string& name) {
  const int rank = engine.topology().rank;
  auto values = input_of<float>(rank, 9, 33);
  const Outcome outcome = outcome_of(engine, start_sum(engine, name, values));
  CHECK(outcome.status.message == "");
  CHECK(same_bytes(values, expected_sums<float>(engine.topology().size, 9, 33)));
}

// Whole numbers that are exact in every type and in every order, also multiplied.
template <typename T>
std::vector<T> small_numbers(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = of_real<T>(static_cast<double>((static_cast<std::size_t>(rank) + i) % 3 + 1));
  }
  return values;
}

template <typename T>
double real_of(T value) {
  if constexpr (kSixteenBit<T>) {
    return static_cast<double>(to_float(value));
  } else {
    return static_cast<double>(value);
  }
}

// What `op` over small_numbers of these ranks gives, times `factor`.
template <typename T>
std::vector<T> reduced(const std::vector<int>& ranks, std::size_t count, ReduceOp op,
                       double divisor = 1, double factor = 1) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    double value = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const double next = static_cast<double>((static_cast<std::size_t>(ranks[r]) + i) % 3 + 1);
      if (r == 0)
        value = next;
      else if (op == ReduceOp::kMin)
        value = std::min(value, next);
      else if (op == ReduceOp::kMax)
        value = std::max(value, next);
      else if (op == ReduceOp::kProduct)
        value *= next;
      else
        value += next;
    }
    values[i] = of_real<T>(value * factor / divisor);
  }
  return values;
}

inline std::vector<int> first_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline int add_set(Engine& engine, const std::vector<int>& ranks, const std::string& name = "") {
  Request request = plain_request(Kind::kAddSet, name);
  request.sizes.assign(ranks.begin(), ranks.end());
  const Outcome outcome = run(engine, request);
  REQUIRE(outcome.status.message == "");
  return static_cast<int>(outcome.number);
}

}  // namespace hvd::test
