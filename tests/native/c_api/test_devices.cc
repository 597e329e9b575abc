// Tensors on devices through the C table: the event behind which the results are.
#include <doctest/doctest.h>

#include "engine/devices/device_engines.h"
#include "framework.h"

namespace hvd::test {
namespace {

struct OnDevice {
  int code = -1;
  int before = -9, follows = -9, calls = 0;
  std::string text;
  std::vector<DLDevice> outputs;
  Word ended{0};

  static void done(void* context, const hvd_outcome* outcome) {
    auto& self = *static_cast<OnDevice*>(context);
    self.code = outcome->code;
    self.text = outcome->text;
    ++self.calls;
    if (outcome->event != nullptr) {
      self.before = core().event_query(outcome->event);
      self.follows = core().stream_wait(outcome->event, stream_of(7), nullptr, 0);
    }
    for (std::size_t i = 0; i < outcome->outputs_count; ++i) {
      self.outputs.push_back(outcome->outputs[i].tensor.device);
    }
    self.ended.store(1);
    futex_wake_all(self.ended);
  }
  void wait() {
    while (ended.load() == 0) futex_wait(ended, 0, std::chrono::hours(1));
  }
};

// One tensor of `values`' device.
void ask_on_device(hvd_engine* engine, int kind, const FakeTensor<float>& values, OnDevice& told) {
  std::vector<std::int64_t> shape{4};
  DLTensor tensor{};
  tensor.data = values.data();
  tensor.device = {kDLCUDA, 1};
  tensor.ndim = 1;
  tensor.dtype = {kDLFloat, 32, 1};
  tensor.shape = shape.data();
  hvd_request request{};
  request.struct_size = sizeof(request);
  request.kind = kind;
  request.name = "x";
  request.op = HVD_SUM;
  request.prescale = request.postscale = 1;
  request.count = 1;
  request.inputs = &tensor;
  if (kind == HVD_ALLREDUCE) request.outputs = &tensor;
  request.stream = stream_of(5);
  request.done = &OnDevice::done;
  request.context = &told;
  REQUIRE(asked(engine, request) == "");
}

}  // namespace

TEST_CASE("table: an operation on a device reports its event") {
  FakeMachine machine(2);
  Engines owners = engines_on(machine, 2);
  std::vector<std::unique_ptr<hvd_engine>> engines;
  for (auto& owner : owners) {
    engines.push_back(std::make_unique<hvd_engine>());
    engines.back()->engine = std::move(owner);
  }
  run_ranks(2, [&](int rank) {
    hvd_engine* const engine = engines[static_cast<std::size_t>(rank)].get();
    FakeDevice& device = machine[rank];
    device.held = true;
    const FakeTensor<float> values(1, std::vector<float>(4, static_cast<float>(rank + 1)));
    OnDevice sum;
    ask_on_device(engine, HVD_ALLREDUCE, values, sum);
    sum.wait();
    CHECK(sum.calls == 1);
    CHECK(sum.text == "");
    CHECK(sum.before == 0);
    CHECK(sum.follows == HVD_OK);
    CHECK(has(device.calls(), "stream " + pointer_text(stream_of(7)) + " follows operation 0"));
    device.held = false;
    CHECK(values.values() == std::vector<float>(4, 3.0F));
    OnDevice gathered;
    ask_on_device(engine, HVD_ALLGATHER, values, gathered);
    gathered.wait();
    CHECK(gathered.before == 1);
    REQUIRE(gathered.outputs.size() == 1);
    CHECK(gathered.outputs[0].device_type == kDLCUDA);
    CHECK(gathered.outputs[0].device_id == 1);
    device.failed = true;
    OnDevice lost;
    ask_on_device(engine, HVD_ALLREDUCE, values, lost);
    lost.wait();
    CHECK(lost.before < 0);
    device.failed = false;
    core().shutdown(engine);
  });
}

}  // namespace hvd::test
