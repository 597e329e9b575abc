// A core of which the test decides when, and with what, an operation ends. For the tests of
// plugins, which have the table of native/c_api alone.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "c_api/plugin.h"

namespace hvd::plugin::test {

// A request that the core has taken.
struct Taken {
  std::string name;
  hvd_request request;
  std::vector<DLTensor> inputs, outputs;
  std::vector<std::vector<std::int64_t>> shapes, output_shapes;
  std::vector<std::int64_t> splits;
};

// Results of the core's own memory.
struct Result {
  std::vector<float> rows;
  std::vector<std::int64_t> shape;
};

class FakeCore {
 public:
  FakeCore() {
    the() = this;
    core.struct_size = sizeof(core);
    core.current = [] { return the()->current(); };
    core.release = [](hvd_engine*) { --the()->engines; };
    core.keep = [](hvd_buffer*) { ++the()->kept; };
    core.drop = [](hvd_buffer*) { --the()->kept; };
    core.enqueue = [](hvd_engine*, const hvd_request* request, char* text, std::size_t size) {
      return the()->take(*request, text, size);
    };
    table() = &core;
  }
  ~FakeCore() {
    table() = nullptr;
    the() = nullptr;
  }
  FakeCore(const FakeCore&) = delete;
  FakeCore& operator=(const FakeCore&) = delete;

  // Ends a request; on the thread of another `done`, when that one has returned.
  void end(std::size_t number, std::int32_t code = HVD_OK, const std::string& text = "",
           std::int32_t rank = -1) {
    tell(at(number).request, code, text, rank, {}, {}, -1);
  }
  void end_with(std::size_t number, std::vector<Result> results,
                std::vector<std::int64_t> sizes = {}, std::int64_t joined = -1) {
    tell(at(number).request, HVD_OK, "", -1, std::move(results), std::move(sizes), joined);
  }
  const Taken& at(std::size_t number) {
    const std::lock_guard<std::mutex> locked(mutex);
    return all.at(number);
  }
  std::vector<std::string> names() {
    const std::lock_guard<std::mutex> locked(mutex);
    std::vector<std::string> found;
    for (const Taken& taken : all) found.push_back(taken.name);
    return found;
  }

  std::mutex mutex;
  std::deque<Taken> all;
  bool initialized = true;
  std::atomic<int> engines{0};  // that were asked for and not given back
  std::atomic<int> kept{0};
  std::int32_t ends_at_once = -1;  // a code: `done` comes before enqueue() returns
  bool looks_at_last = false;      // at the request when it has ended, before enqueue() returns
  std::pair<std::int32_t, std::string> refuses{HVD_OK, ""};  // each request

 protected:
  hvd_core core{};  // a plugin's tests add what it calls besides

 private:
  static FakeCore*& the() {
    static FakeCore* one = nullptr;
    return one;
  }
  hvd_engine* current() {
    if (!initialized) return nullptr;
    ++engines;
    return reinterpret_cast<hvd_engine*>(this);
  }

  std::int32_t take(const hvd_request& request, char* text, std::size_t size) {
    if (refuses.first != HVD_OK) {
      std::strncpy(text, refuses.second.c_str(), size - 1);
      return refuses.first;
    }
    if (looks_at_last) end_at_once(request);
    Taken taken{request.name, request, {}, {}, {}, {}, {}};
    taken.inputs.assign(request.inputs, request.inputs + request.count);
    if (request.outputs != nullptr)
      taken.outputs.assign(request.outputs, request.outputs + request.count);
    for (const DLTensor& each : taken.inputs)
      taken.shapes.emplace_back(each.shape, each.shape + each.ndim);
    for (const DLTensor& each : taken.outputs)
      taken.output_shapes.emplace_back(each.shape, each.shape + each.ndim);
    taken.splits.assign(request.splits, request.splits + request.splits_count);
    {
      const std::lock_guard<std::mutex> locked(mutex);
      all.push_back(std::move(taken));
    }
    if (!looks_at_last) end_at_once(request);
    return HVD_OK;
  }
  void end_at_once(const hvd_request& request) {
    if (ends_at_once < 0) return;
    tell(request, ends_at_once, ends_at_once == HVD_OK ? "" : "why", 1, {}, {}, -1);
  }

  // The results' memory is the outcome's, and is kept for as long as the test has its core.
  void tell(const hvd_request& request, std::int32_t code, const std::string& text,
            std::int32_t rank, std::vector<Result> results, std::vector<std::int64_t> sizes,
            std::int64_t number) {
    thread_local std::deque<std::function<void()>> later;
    thread_local bool tells = false;
    {
      const std::lock_guard<std::mutex> locked(mutex);
      results_.push_back(std::move(results));
      std::vector<Result>* const given = &results_.back();
      later.emplace_back([=, done = request.done, context = request.context] {
        std::vector<hvd_output> outputs;
        for (Result& each : *given) {
          const auto dimensions = static_cast<std::int32_t>(each.shape.size());
          outputs.push_back({sizeof(hvd_output),
                             {each.rows.data(),
                              {kDLCPU, 0},
                              dimensions,
                              {kDLFloat, 32, 1},
                              each.shape.data(),
                              nullptr,
                              0},
                             reinterpret_cast<hvd_buffer*>(&each)});
        }
        hvd_outcome outcome{sizeof(outcome), code,           rank,         text.c_str(),
                            outputs.size(),  outputs.data(), sizes.size(), sizes.data(),
                            number,          nullptr};
        done(context, &outcome);
      });
    }
    if (tells) return;
    tells = true;
    while (!later.empty()) {
      const std::function<void()> next = std::move(later.front());
      later.pop_front();
      next();
    }
    tells = false;
  }

  std::deque<std::vector<Result>> results_;
};

}  // namespace hvd::plugin::test
