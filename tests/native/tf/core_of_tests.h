// The core that the tests of TensorFlow's plugin have, and tensors of a TensorFlow that is a fake.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "fake_core.h"
#include "fake_tensorflow/fake_tensorflow.h"
#include "tf/call.h"
#include "tf/registration.h"

namespace hvd::tf::test {

using fake_tensorflow::be_deaf;
using fake_tensorflow::bytes;
using fake_tensorflow::floats;
using fake_tensorflow::int32s;
using fake_tensorflow::kernels;
using fake_tensorflow::kFloat;
using fake_tensorflow::kInt32;
using fake_tensorflow::kInt64;
using fake_tensorflow::kString;
using fake_tensorflow::Memory;
using fake_tensorflow::Node;
using fake_tensorflow::of_type;
using fake_tensorflow::ops;
using fake_tensorflow::Run;
using fake_tensorflow::Tensor;
using fake_tensorflow::values;

using plugin::test::Result;
using plugin::test::Taken;

class FakeCore : public plugin::test::FakeCore {
 public:
  FakeCore() {
    static const std::string why = register_all();
    REQUIRE(why == "");
    core.local_rank = [](const hvd_engine*) { return 4; };
    core.local_size = [](const hvd_engine*) { return 5; };
    core.set_size = [](const hvd_engine*, std::int32_t set) { return set > 1 ? 0 : 2; };
    core.set_rank = [](const hvd_engine*, std::int32_t set) { return set == 1 ? -1 : 1; };
  }
  ~FakeCore() {
    CHECK(engines == 0);
    CHECK_FALSE(any_under_way());
  }
};

// The last input of a collective: no bytes, or the name that the caller of an eager one has given.
inline Tensor ticket(const std::string& name = "") { return bytes(name); }

inline std::vector<Tensor> with_ticket(Tensor tensor) { return {std::move(tensor), ticket()}; }

}  // namespace hvd::tf::test
