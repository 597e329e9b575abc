// The core that the tests of MXNet's plugin have, and arrays to push.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "fake_core.h"
#include "fake_mxnet/fake_mxnet.h"
#include "mxnet/call.h"

namespace hvd::mxnet::test {

constexpr int kFloat64 = 1;

using plugin::test::Taken;

class FakeCore : public plugin::test::FakeCore {
 public:
  FakeCore() { looks_at_last = true; }
  ~FakeCore() { fake_mxnet::clear(); }
};

// Of one process: the fake MXNet is found once.
inline void begin() {
  static const std::string why = find_mxnet(HVD_FAKE_MXNET);
  REQUIRE(why == "");
}

// Arrays that the test holds like Python, and releases at its end.
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

// An allreduce in place, whose memory only MXNet and the plugin hold.
inline void ask_in_place(const std::string& name, std::int32_t set = 0) {
  Held held;
  void* const array = held.array({2});
  Asked asked;
  asked.name = name;
  asked.set = set;
  REQUIRE(ask(asked, {array}, {array}) == "");
}

}  // namespace hvd::mxnet::test
