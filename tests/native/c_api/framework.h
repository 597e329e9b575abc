// A framework bound to the core by hand: ranks as threads, each with its reference to an engine,
// tensors of any type, and the result of `done`.
#pragma once

#include <doctest/doctest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "c_api/current.h"
#include "c_api/hvd_core.h"
#include "engine/engines.h"

namespace hvd::test {

inline const hvd_core& core() { return *hvd_core_table(); }

// The results of one request, and their number.
class Told {
 public:
  static void done(void* context, const hvd_outcome* outcome) {
    static_cast<Told*>(context)->tell(*outcome);
  }
  // Waits for the result, which must be a success.
  void check() {
    wait();
    CHECK(text == "");
    CHECK(code == HVD_OK);
    CHECK(calls() == 1);
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    told_.wait(lock, [&] { return calls_ > 0; });
  }
  int calls() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }
  ~Told() {
    for (const hvd_output& output : outputs) core().drop(output.owner);
  }

  bool keeps = true;                // the outputs
  std::function<void()> meanwhile;  // within done
  int code = -1, rank = -1;
  std::string text;
  std::vector<hvd_output> outputs;
  std::vector<std::int64_t> sizes;
  std::int64_t number = -1;

 private:
  void tell(const hvd_outcome& outcome) {
    code = outcome.code;
    rank = outcome.rank;
    text = outcome.text;
    number = outcome.number;
    sizes.assign(outcome.sizes, outcome.sizes + outcome.sizes_count);
    if (keeps) outputs.assign(outcome.outputs, outcome.outputs + outcome.outputs_count);
    for (const hvd_output& output : outputs) core().keep(output.owner);
    if (meanwhile) meanwhile();
    const std::lock_guard<std::mutex> lock(mutex_);
    ++calls_;
    told_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable told_;
  int calls_ = 0;
};

template <typename T>
DLDataType type_of() {
  if constexpr (std::is_same_v<T, Float16>) return {kDLFloat, 16, 1};
  if constexpr (std::is_same_v<T, Bfloat16>) return {kDLBfloat, 16, 1};
  constexpr auto kBits = static_cast<std::uint8_t>(sizeof(T) * 8);
  if constexpr (std::is_same_v<T, bool>) return {kDLBool, 8, 1};
  if constexpr (std::is_floating_point_v<T>) return {kDLFloat, kBits, 1};
  if constexpr (std::is_integral_v<T>) return {std::is_signed_v<T> ? kDLInt : kDLUInt, kBits, 1};
  return {kDLComplex, kBits, 1};
}

template <typename T>
DLTensor view(std::vector<T>& values, std::vector<std::int64_t>& shape) {
  DLTensor tensor{};
  tensor.data = values.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<std::int32_t>(shape.size());
  tensor.dtype = type_of<T>();
  tensor.shape = shape.data();
  return tensor;
}

// The values of a result that was kept.
template <typename T>
std::vector<T> values_of(const hvd_output& output) {
  REQUIRE(output.tensor.dtype.code == type_of<T>().code);
  REQUIRE(output.tensor.dtype.bits == type_of<T>().bits);
  REQUIRE(reinterpret_cast<std::uintptr_t>(output.tensor.data) % 64 == 0);
  std::int64_t count = 1;
  for (std::int32_t i = 0; i < output.tensor.ndim; ++i) count *= output.tensor.shape[i];
  std::vector<T> values(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(values.data(), output.tensor.data, values.size() * sizeof(T));
  return values;
}

inline hvd_request request_of(int kind, const char* name, Told& told) {
  hvd_request request{};
  request.struct_size = sizeof(request);
  request.kind = kind;
  request.name = name;
  request.op = HVD_SUM;
  request.prescale = request.postscale = 1;
  request.done = &Told::done;
  request.context = &told;
  return request;
}

// Refused: the sentence, and done was not called. "": it was taken.
inline std::string asked(hvd_engine* engine, const hvd_request& request, int* code = nullptr) {
  char text[512] = "untouched";
  const int its = core().enqueue(engine, &request, text, sizeof(text));
  if (code != nullptr) *code = its;
  CHECK((its == HVD_OK) == (std::string(text).empty()));
  return text;
}

// One tensor, in place or without an output, and what `more` says besides.
template <typename T>
std::string ask(hvd_engine* engine, int kind, const char* name, std::vector<T>& values,
                std::vector<std::int64_t> shape, Told& told,
                const std::function<void(hvd_request&)>& more = {}) {
  const DLTensor tensor = view(values, shape);
  hvd_request request = request_of(kind, name, told);
  request.count = 1;
  request.inputs = &tensor;
  if (kind == HVD_ALLREDUCE || kind == HVD_BROADCAST) request.outputs = &tensor;
  if (more) more(request);
  return asked(engine, request);
}

template <typename T>
std::string ask_sum(hvd_engine* engine, const char* name, std::vector<T>& values, Told& told,
                    int set = 0) {
  return ask(engine, HVD_ALLREDUCE, name, values, {static_cast<std::int64_t>(values.size())}, told,
             [&](hvd_request& request) { request.set = set; });
}

// The engine still works, on every rank.
inline void check_usable(hvd_engine* engine, const char* name) {
  std::vector<float> values(3, static_cast<float>(core().rank(engine) + 1));
  Told told;
  REQUIRE(ask_sum(engine, name, values, told) == "");
  told.check();
  const int n = core().size(engine);
  CHECK(values == std::vector<float>(3, static_cast<float>(n * (n + 1) / 2)));
}

// body(engine, rank) on a thread per rank, over local meshes; then the engines end.
inline void on_ranks(int size, const std::function<void(hvd_engine*, int)>& body,
                     const Table& table = {}) {
  const EngineOptions options = options_of(table);
  std::vector<hvd_engine*> engines;
  for (auto& mesh : make_local_meshes(size, options.mesh)) {
    engines.push_back(new hvd_engine{std::make_shared<Engine>(std::move(mesh), options)});
  }
  run_ranks(size, [&](int rank) {
    hvd_engine* const engine = engines[static_cast<std::size_t>(rank)];
    body(engine, rank);
    core().shutdown(engine);
    core().release(engine);
  });
}

}  // namespace hvd::test
