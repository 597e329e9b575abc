// One call: what MXNet and the core are passed, and how it ends.
#include "mxnet/core_of_tests.h"

namespace hvd::mxnet::test {
namespace {

using fake_mxnet::operation;
using Memories = std::vector<const ::mxnet::Chunk*>;

// Ended well once, then dropped, and nothing of it is left.
void check_ended(std::size_t number) {
  CHECK(operation(number).error == "");
  CHECK(operation(number).ended == 1);
  CHECK(operation(number).dropped == 1);
  CHECK(fake_mxnet::arrays() == 0);
}

}  // namespace

TEST_CASE("mxnet: a call waits for MXNet, then the core gets the request") {
  begin();
  FakeCore core;
  Held held;
  void* const input = held.array({2, 3});
  void* const output = held.array({1, 3});
  fake_mxnet::of(input).memory().words[5] = 7;
  const Asked asked{"reducescatter.x", HVD_REDUCESCATTER, 4, HVD_MAX, 3, -2, 0.5, 2};
  REQUIRE(ask(asked, {input}, {output}) == "");
  const fake_mxnet::Operation& pushed = operation(0);
  CHECK(pushed.name == "reducescatter.x");
  CHECK(pushed.priority == -2);
  CHECK(pushed.property == kCpuPrioritized);
  CHECK(pushed.device == kCpu);
  CHECK(pushed.reads == Memories{&fake_mxnet::of(input).memory()});
  CHECK(pushed.writes == Memories{&fake_mxnet::of(output).memory()});
  CHECK(core.all.empty());

  held.release_all();  // Python has forgotten them
  fake_mxnet::run(0);
  REQUIRE(core.all.size() == 1);
  const Taken& taken = core.all[0];
  CHECK(taken.name == "reducescatter.x");
  CHECK(taken.request.kind == HVD_REDUCESCATTER);
  CHECK(taken.request.set == 4);
  CHECK(taken.request.op == HVD_MAX);
  CHECK(taken.request.root == 3);
  CHECK(taken.request.prescale == 0.5);
  CHECK(taken.request.postscale == 2);
  REQUIRE(taken.inputs.size() == 1);
  CHECK(taken.shapes == std::vector<std::vector<std::int64_t>>{{2, 3}});
  CHECK(taken.inputs[0].dtype.code == kDLFloat);
  CHECK(taken.inputs[0].dtype.bits == 64);
  CHECK(static_cast<double*>(taken.inputs[0].data)[5] == 7);
  CHECK(taken.outputs[0].data == pushed.writes[0]->words.data());
  CHECK(pushed.ended == 0);

  core.end(0);
  check_ended(0);
  CHECK(core.engines == 0);
}

TEST_CASE("mxnet: an operation may end before the core has returned from taking it") {
  begin();
  FakeCore core;
  core.ends_at_once = HVD_OK;
  for (std::size_t number = 0; number < 3; ++number) {
    Held held;
    void* const first = held.array({2, 3});
    void* const second = held.array({4});
    REQUIRE(ask({}, {first, second}, {first, second}) == "");
    held.release_all();
    fake_mxnet::run(number);
    check_ended(number);
    // The core's view of the request was whole when the call itself had gone.
    CHECK(core.all.back().name == "allreduce.x");
    CHECK(core.all.back().shapes == std::vector<std::vector<std::int64_t>>{{2, 3}, {4}});
  }
}

TEST_CASE("mxnet: each memory is named once to MXNet, as written where it is") {
  begin();
  FakeCore core;
  core.ends_at_once = HVD_OK;
  Held held;
  void* const one = held.array({4});
  void* const rows = held.array({2}, one);
  void* const other = held.array({2});
  REQUIRE(ask({}, {one, rows, other}, {one, rows, rows}) == "");
  CHECK(operation(0).writes == Memories{&fake_mxnet::of(one).memory()});
  CHECK(operation(0).reads == Memories{&fake_mxnet::of(other).memory()});
  fake_mxnet::run(0);
  held.release_all();
  check_ended(0);
}

TEST_CASE("mxnet: elements are put row by row before they are read, where there are rows") {
  begin();
  FakeCore core;
  core.ends_at_once = HVD_OK;
  Held held;
  void* const row = held.array({4});
  void* const rows = held.array({2, 2});
  REQUIRE(ask({}, {row, rows}, {row, rows}) == "");
  CHECK(fake_mxnet::of(row).memory().reordered == 0);
  CHECK(fake_mxnet::of(rows).memory().reordered == 1);
  fake_mxnet::run(0);
}

TEST_CASE("mxnet: a failure of the core has its class, with the rank") {
  begin();
  FakeCore core;
  struct Row {
    std::int32_t code, rank;
    const char* said;
  };
  constexpr Row kRows[] = {{HVD_INVALID_ARGUMENT, -1, "ValueError: why"},
                           {HVD_MISMATCH, -1, "hvd_kernel.errors.Mismatch: why"},
                           {HVD_ABORTED, 2, "hvd_kernel.errors.RankFailed: [rank 2] why"},
                           {HVD_RANK_DIED, 1, "hvd_kernel.errors.RankDied: [rank 1] why"},
                           {HVD_SHUTDOWN, -1, "hvd_kernel.errors.HorovodInternalError: why"},
                           {HVD_STALLED, 0, "hvd_kernel.errors.RankStalled: [rank 0] why"},
                           {HVD_NO_MEMORY, -1, "hvd_kernel.errors.OutOfMemory: why"}};
  std::size_t number = 0;
  for (const Row& row : kRows) {
    ask_in_place("allreduce.x");
    fake_mxnet::run(number);
    core.end(number, row.code, "why", row.rank);
    CHECK(operation(number).error == row.said);
    CHECK(operation(number).ended == 1);
    CHECK(operation(number).dropped == 1);
    ++number;
  }
  CHECK(fake_mxnet::arrays() == 0);
}

TEST_CASE("mxnet: requests that are refused, or have no engine, end with the reason") {
  begin();
  FakeCore core;
  core.refuses = {HVD_INVALID_ARGUMENT, "no such set"};
  ask_in_place("allreduce.x", 9);
  fake_mxnet::run(0);
  CHECK(operation(0).error == "ValueError: no such set");
  core.initialized = false;
  ask_in_place("allreduce.x");
  fake_mxnet::run(1);
  CHECK(
      operation(1).error ==
      "hvd_kernel.errors.HorovodInternalError: Horovod has not been initialized; use hvd.init().");
  for (const std::size_t number : {0, 1}) {
    CHECK(operation(number).ended == 1);
    CHECK(operation(number).dropped == 1);
  }
  CHECK(core.names().empty());
  CHECK(core.engines == 0);
  CHECK(fake_mxnet::arrays() == 0);
}

TEST_CASE("mxnet: a refusal of MXNet is reported at once, and nothing is left of the call") {
  begin();
  FakeCore core;
  Held held;
  void* const array = held.array({2, 2});
  for (const char* function : {"MXShallowCopyNDArray", "MXNDArrayGetDType", "MXNDArrayGetShapeEx64",
                               "MXEnginePushAsyncND"}) {
    fake_mxnet::fail(function, std::string("not ") + function);
    CHECK(ask({}, {array}, {array}) == std::string("not ") + function);
    CHECK(fake_mxnet::arrays() == 1);
  }
  CHECK(fake_mxnet::pushed() == 0);
  REQUIRE(ask({}, {array}, {array}) == "");
  fake_mxnet::fail("MXNDArrayGetData", "no memory of the device");
  fake_mxnet::run(0);
  CHECK(operation(0).error == "no memory of the device");
  CHECK(operation(0).ended == 1);
  CHECK(core.names().empty());
  held.release_all();
  CHECK(fake_mxnet::arrays() == 0);
}

TEST_CASE(
    "mxnet: a type that the core has not, and a shape that is not known, are refused by name") {
  begin();
  FakeCore core;
  Held held;
  void* const odd = held.array({2}, nullptr, 12);
  CHECK(ask({}, {odd}, {odd}) ==
        "MXNet's type 12 of a tensor of allreduce.x is not supported; cast it to another one");
  void* const unknown = held.array({-1});
  CHECK(ask({}, {unknown}, {unknown}) == "a tensor of allreduce.x has no shape yet");
  CHECK(fake_mxnet::arrays() == 2);
  CHECK(fake_mxnet::pushed() == 0);
}

}  // namespace hvd::mxnet::test
