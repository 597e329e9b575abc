// What TensorFlow is told of ops and kernels, shapes while a graph is traced, and a TensorFlow that
// cannot be used.
#include "tf/core_of_tests.h"

namespace hvd::tf::test {
namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;
constexpr std::int64_t kUnknown = -1, kNothing = -2;

Shapes shapes(const std::string& op, const Shapes& inputs, std::size_t results,
              std::string* why = nullptr) {
  Shapes found;
  const std::string said = ops().at(op).shapes(inputs, &found);
  if (why != nullptr) *why = said;
  found.resize(results);
  return found;
}

}  // namespace

TEST_CASE("tf: every op exists for the CPU and for GPUs, there in host memory") {
  const FakeCore core;
  std::vector<std::string> names;
  for (const auto& [name, op] : ops()) {
    names.push_back(name);
    CHECK(kernels(name).at("CPU").empty());
    CHECK(kernels(name).at("GPU").size() == op.inputs.size() + op.outputs.size());
  }
  CHECK(names == std::vector<std::string>{
                     "HvdAllgather", "HvdAllreduce", "HvdAlltoall", "HvdBarrier", "HvdBroadcast",
                     "HvdGroupedAllgather", "HvdGroupedAllreduce", "HvdGroupedBroadcast",
                     "HvdGroupedReducescatter", "HvdJoin", "HvdLocalRank", "HvdLocalSize",
                     "HvdProcessSetIncluded", "HvdRank", "HvdReducescatter", "HvdSamples",
                     "HvdSize", "HvdStep", "HvdTicket"});
}

TEST_CASE("tf: collectives have a ticket instead of a state: TensorFlow begins them side by side") {
  const FakeCore core;
  for (const auto& [name, op] : ops()) {
    const bool has_ticket = !op.inputs.empty() && op.inputs.back() == "ticket: uint8";
    CHECK(op.stateful != has_ticket);
  }
}

TEST_CASE("tf: a second registration is reported") {
  const FakeCore core;
  CHECK(register_all().rfind("HvdAllreduce: registered already; HvdGroupedAllreduce: ", 0) == 0);
}

TEST_CASE("tf: callbacks of another C++ library are refused") {
  const FakeCore core;
  be_deaf(true);
  const std::string why = find_tensorflow();
  be_deaf(false);
  CHECK(why ==
        "this TensorFlow was built with another C++ library (its std::function differs from "
        "libstdc++'s): use the wheels from PyPI");
  CHECK(find_tensorflow() == "");
}

TEST_CASE("tf: shapes of results while a graph is traced") {
  const FakeCore core;
  const std::vector<std::int64_t> rows{3, 4}, anything{kNothing}, none{0};
  CHECK(shapes("HvdAllreduce", {rows, none}, 1) == Shapes{rows});
  CHECK(shapes("HvdGroupedAllreduce", {rows, anything, none}, 2) == Shapes{rows, anything});
  CHECK(shapes("HvdAllgather", {rows, none}, 1) == Shapes{{kUnknown, 4}});
  CHECK(shapes("HvdAllgather", {anything, none}, 1) == Shapes{anything});
  CHECK(shapes("HvdReducescatter", {{6}, none}, 1) == Shapes{{kUnknown}});
  CHECK(shapes("HvdAlltoall", {rows, {2}, none}, 2) == Shapes{{kUnknown, 4}, {kUnknown}});
  CHECK(shapes("HvdSize", {}, 1) == Shapes{{}});
  CHECK(shapes("HvdTicket", {}, 1) == Shapes{{kUnknown}});
  std::string why;
  shapes("HvdAllgather", {{}, none}, 1, &why);
  CHECK(why == "a scalar has no rows; reshape it to [1]");
}

}  // namespace hvd::tf::test
