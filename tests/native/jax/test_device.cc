// Calls of programs on a GPU: the core gets XLA's stream and the arrays' device, and the stream
// continues after the result. XLA, core and driver are the test's.
#include <thread>

#include "jax/call.h"
#include "jax/fake_xla.h"

namespace hvd::jax::test {
namespace {

using Floats = std::vector<float>;

int things[2];
hvd_event* event_of_test() { return reinterpret_cast<hvd_event*>(&things[1]); }
const void* known = nullptr;  // what else there is lies on no GPU

// A driver that knows one array, on GPU 3.
struct FakeDriver {
  explicit FakeDriver(const Floats& array) {
    known = array.data();
    replace_driver([](void* value, int attribute, std::uintptr_t pointer) {
      CHECK(attribute == 9);
      if (pointer != reinterpret_cast<std::uintptr_t>(known)) return 1;
      *static_cast<int*>(value) = 3;
      return 0;
    });
  }
  ~FakeDriver() { replace_driver(nullptr); }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
};

TEST_CASE("the core gets the stream and the device, and the stream follows the result") {
  const FakeXla xla;
  FakeCore core;
  core.is_quick = true;
  core.event = event_of_test();
  Floats in{1, 2}, out{0, 0};
  const FakeDriver driver(in);
  FrameOf call(xla, "allreduce.a", &in, &out);
  call.on(&things[0]);
  CHECK(run_on_device(&call.frame) == nullptr);
  CHECK(call.frame.future == nullptr);
  REQUIRE(core.requests.size() == 1);
  CHECK(core.requests[0].stream == &things[0]);
  CHECK(core.devices[0].device_type == kDLCUDA);
  CHECK(core.devices[0].device_id == 3);
  REQUIRE(core.followed.size() == 1);
  CHECK(core.followed[0].first == event_of_test());
  CHECK(core.followed[0].second == &things[0]);
  CHECK_FALSE(any_under_way());
}

TEST_CASE("the handler waits until all ranks have agreed") {
  const FakeXla xla;
  FakeCore core;
  core.event = event_of_test();
  Floats in{1}, out{0};
  const FakeDriver driver(in);
  FrameOf call(xla, "allreduce.a", &in, &out);
  call.on(&things[0]);
  std::atomic<bool> returned{false};
  std::thread program([&] {
    CHECK(run_on_device(&call.frame) == nullptr);
    returned = true;
  });
  while (core.asked == 0) std::this_thread::yield();
  CHECK(any_under_way());
  CHECK_FALSE(returned);
  core.end(0);
  program.join();
  CHECK(core.followed.size() == 1);
  CHECK_FALSE(any_under_way());
}

TEST_CASE("a failure on a GPU is reported, and nothing follows it") {
  const FakeXla xla;
  FakeCore core;
  core.is_quick = true;
  Floats in{1}, out{0};
  const FakeDriver driver(in);
  FrameOf call(xla, "allreduce.a", &in, &out);
  call.on(&things[0]);
  std::string said;
  SUBCASE("a stream that cannot follow") {
    core.event = event_of_test();
    core.lost = "the GPU has fallen off the bus";
    said = "the GPU has fallen off the bus [hvd_kernel.errors.HorovodInternalError]";
  }
  SUBCASE("the core's refusal") {
    core.refusal = "no such set";
    said = "no such set";
  }
  SUBCASE("a frame without a stream") {
    call.on(nullptr);
    said = "XLA has no stream for it: it is registered for GPUs alone";
  }
  SUBCASE("an array that the driver does not know") {
    known = nullptr;
    said = "CUDA's driver does not say which GPU an array is on: set HVD_JAX=callback";
  }
  SUBCASE("what the core gives in its own memory") {
    call.kind(HVD_ALLGATHER);
    said = "allreduce.a has no form for a GPU's stream";
  }
  SUBCASE("a result for one rank only") {
    call.only(0);
    said = "allreduce.a has no form for a GPU's stream";
  }
  const Error* const why = run_on_device(&call.frame);
  REQUIRE(why != nullptr);
  CHECK(why->text == said);
  CHECK(core.followed.empty());
  CHECK_FALSE(any_under_way());
}

TEST_CASE("samples of a step are counted") {
  const FakeXla xla;
  FakeCore core;
  core.is_quick = true;
  Floats in{1}, out{0};
  FrameOf call(xla, "allreduce.a", &in, &out);
  call.samples(32);
  const std::int64_t before = counters.samples;
  CHECK(run(&call.frame) == nullptr);
  CHECK(counters.samples - before == 32);
}

}  // namespace
}  // namespace hvd::jax::test
