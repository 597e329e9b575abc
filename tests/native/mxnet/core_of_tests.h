// A core of which the test decides when, and with what, an operation ends; and arrays to push.
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
#include "fake_mxnet/fake_mxnet.h"
#include "mxnet/call.h"

namespace hvd::mxnet::test {

constexpr int kFloat64 = 1;

// A request that the core has taken.
struct Taken {
  std::string name;
  hvd_request request;
  std::vector<DLTensor> inputs, outputs;
  std::vector<std::vector<std::int64_t>> shapes;  // of inputs
};

class FakeCore {
 public:
  FakeCore() {
    table_.struct_size = sizeof(table_);
    table_.current = [] { return the()->current(); };
    table_.release = [](hvd_engine*) { --the()->engines; };
    table_.enqueue = [](hvd_engine*, const hvd_request* request, char* text, std::size_t size) {
      return the()->take(*request, text, size);
    };
    the() = this;
    plugin::table() = &table_;
  }
  ~FakeCore() {
    plugin::table() = nullptr;
    the() = nullptr;
    fake_mxnet::clear();
  }
  FakeCore(const FakeCore&) = delete;
  FakeCore& operator=(const FakeCore&) = delete;

  // Ends a request; on the thread of another `done`, when that one has returned.
  void end(std::size_t number, std::int32_t code = HVD_OK, const std::string& text = "",
           std::int32_t rank = -1) {
    Taken* taken = nullptr;
    {
      const std::lock_guard<std::mutex> locked(mutex);
      taken = &all.at(number);
    }
    tell(taken->request, code, text, rank);
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
  std::atomic<int> engines{0};     // that were asked for and not given back
  std::int32_t ends_at_once = -1;  // a code: `done` comes before enqueue() returns
  std::pair<std::int32_t, std::string> refuses{HVD_OK, ""};  // each request

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
    if (ends_at_once >= 0) tell(request, ends_at_once, ends_at_once == HVD_OK ? "" : "why", 1);
    // It may look at all of the request until it returns, also where the operation has ended.
    Taken taken{request.name,
                request,
                {request.inputs, request.inputs + request.count},
                {request.outputs, request.outputs + request.count},
                {}};
    for (const DLTensor& input : taken.inputs)
      taken.shapes.emplace_back(input.shape, input.shape + input.ndim);
    const std::lock_guard<std::mutex> locked(mutex);
    all.push_back(std::move(taken));
    return HVD_OK;
  }

  void tell(const hvd_request& request, std::int32_t code, const std::string& text,
            std::int32_t rank) {
    thread_local std::deque<std::function<void()>> later;
    thread_local int depth = 0;
    later.emplace_back([=, done = request.done, context = request.context] {
      hvd_outcome outcome{};
      outcome.struct_size = sizeof(outcome);
      outcome.code = code;
      outcome.rank = rank;
      outcome.text = text.c_str();
      outcome.number = -1;
      done(context, &outcome);
    });
    if (depth > 0) return;
    ++depth;
    while (!later.empty()) {
      const std::function<void()> next = std::move(later.front());
      later.pop_front();
      next();
    }
    --depth;
  }

  hvd_core table_{};
};

// Of one process: the fake MXNet is found once.
inline void begin() {
  static const std::string why = find_mxnet(HVD_FAKE_MXNET);
  REQUIRE(why == "");
}

// Arrays that the test holds as Python does, and lets go of at its end.
class Held {
 public:
  ~Held() { release_all(); }
  void* array(const std::vector<std::int64_t>& shape, void* other = nullptr, int type = kFloat64) {
    return all_.emplace_back(fake_mxnet::array(type, shape, other));
  }
  void release_all() {
    for (void* const each : all_) test_free(each);
    all_.clear();
  }

 private:
  static void test_free(void* array) { mxnet()->NDArrayFree(array); }
  std::vector<void*> all_;
};

struct Asked {
  std::string name = "allreduce.x";
  std::int32_t kind = HVD_ALLREDUCE, set = 0, op = HVD_SUM, root = 0, priority = 0;
  double prescale = 1, postscale = 1;
};

inline std::string ask(const Asked& asked, std::vector<void*> inputs, std::vector<void*> outputs) {
  Request request{};
  request.name = asked.name.c_str();
  request.kind = asked.kind;
  request.set = asked.set;
  request.op = asked.op;
  request.root = asked.root;
  request.prescale = asked.prescale;
  request.postscale = asked.postscale;
  request.count = static_cast<std::int32_t>(inputs.size());
  request.priority = asked.priority;
  request.inputs = inputs.data();
  request.outputs = outputs.data();
  return push(request);
}

// An allreduce in place, whose memory nobody but MXNet and the plugin holds.
inline void ask_in_place(const std::string& name, std::int32_t set = 0) {
  Held held;
  void* const array = held.array({2});
  Asked asked;
  asked.name = name;
  asked.set = set;
  REQUIRE(ask(asked, {array}, {array}) == "");
}

}  // namespace hvd::mxnet::test
