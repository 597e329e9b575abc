// Each collective: what the core is asked for, where its results come to lie, and what is refused.
#include <numeric>

#include "tf/core_of_tests.h"

namespace hvd::tf::test {
namespace {

using Floats = std::vector<float>;
using Shape = std::vector<std::int64_t>;

// Counters of one test: the process's go on.
struct Counted {
  std::int64_t forwarded = counters.forwarded, given = counters.given, returned = counters.returned;
  std::vector<std::int64_t> since() const {
    return {counters.forwarded - forwarded, counters.given - given, counters.returned - returned};
  }
};

void doubled(const Taken& taken) {
  for (std::size_t i = 0; i < taken.inputs.size(); ++i) {
    const auto* const in = static_cast<const float*>(taken.inputs[i].data);
    auto* const out = static_cast<float*>(taken.outputs[i].data);
    const std::int64_t count = std::accumulate(taken.shapes[i].begin(), taken.shapes[i].end(),
                                               std::int64_t{1}, std::multiplies<>());
    for (std::int64_t j = 0; j < count; ++j) out[j] = 2 * in[j];
  }
}

}  // namespace

TEST_CASE("tf: an allreduce in the memory of an input without other readers") {
  FakeCore core;
  const Counted counted;
  const Node node("HvdAllreduce", "loss", {{"reduce_op", HVD_MAX}, {"process_set_id", 1}});
  Run run(with_ticket(floats({1, 2, 3, 4}, {2, 2})));
  run.begin(node);
  const Taken& asked = core.at(0);
  CHECK(asked.name == "loss");
  CHECK(asked.request.kind == HVD_ALLREDUCE);
  CHECK(asked.request.op == HVD_MAX);
  CHECK(asked.request.set == 1);
  CHECK(asked.request.prescale == 1.0);
  CHECK(asked.shapes == std::vector<Shape>{{2, 2}});
  CHECK(asked.inputs[0].data == asked.outputs[0].data);
  CHECK(run.ended() == 0);
  doubled(asked);
  core.end(0);
  CHECK(run.ended() == 1);
  CHECK(run.code() == 0);
  CHECK(values(run.output(0)) == Floats{2, 4, 6, 8});
  CHECK(counted.since() == std::vector<std::int64_t>{1, 0, 0});
}

TEST_CASE("tf: an input with other readers is unchanged, and held until the end") {
  FakeCore core;
  const Counted counted;
  const Node node("HvdAllreduce", "loss");
  std::weak_ptr<Memory> input;
  Run run([&] {
    std::vector<Tensor> made = with_ticket(floats({1, 2}));
    input = made[0].memory;
    return made;
  }());
  SUBCASE("TensorFlow says so") { run.forbid_forwarding(); }
  SUBCASE("by a reference") {
    const std::shared_ptr<Memory> held = input.lock();
    run.begin(node);
    CHECK(core.at(0).inputs[0].data == held->data());
  }
  if (core.all.empty()) run.begin(node);
  CHECK(core.at(0).inputs[0].data != core.at(0).outputs[0].data);
  CHECK(input.use_count() == 2);  // TensorFlow's, and the call's
  doubled(core.at(0));
  core.end(0);
  CHECK(input.use_count() == 1);
  CHECK(static_cast<float*>(input.lock()->data())[0] == 1);
  CHECK(values(run.output(0)) == Floats{2, 4});
  CHECK(counted.since() == std::vector<std::int64_t>{0, 0, 0});
}

TEST_CASE("tf: scales travel as the bits of a double") {
  FakeCore core;
  const double third = 1.0 / 3;
  std::int64_t bits = 0;
  std::memcpy(&bits, &third, sizeof(bits));
  const Node node("HvdAllreduce", "scaled", {{"prescale_bits", bits}});
  Run run(with_ticket(floats({1})));
  run.begin(node);
  CHECK(core.at(0).request.prescale == third);
  CHECK(core.at(0).request.postscale == 1.0);
  core.end(0);
}

TEST_CASE("tf: a group is one request") {
  FakeCore core;
  const Node node("HvdGroupedBroadcast", "weights", {{"root_rank", 1}});
  Run run({floats({1}), int32s({2, 3}), ticket()});
  run.begin(node);
  REQUIRE(core.names() == std::vector<std::string>{"weights"});
  CHECK(core.at(0).request.root == 1);
  CHECK(core.at(0).shapes == std::vector<Shape>{{1}, {2}});
  CHECK(core.at(0).inputs[1].dtype.code == kDLInt);
  core.end(0);
  CHECK(run.output(1).as<std::int32_t>()[1] == 3);
}

TEST_CASE("tf: gathered rows are the core's memory, until TensorFlow releases them") {
  FakeCore core;
  const Counted counted;
  const Node node("HvdGroupedAllgather", "rows");
  {
    Run run({floats({1, 2}, {1, 2}), floats({}, {0, 2}), ticket()});
    run.begin(node);
    CHECK(core.at(0).outputs.empty());
    core.end_with(0, {{{1, 2, 3, 4}, {2, 2}}, {{}, {0, 2}}});
    CHECK(run.ended() == 1);
    CHECK(run.output(0).shape == Shape{2, 2});
    CHECK(values(run.output(0)) == Floats{1, 2, 3, 4});
    CHECK(run.output(1).shape == Shape{0, 2});
    CHECK(core.kept == 1);  // what is empty is TensorFlow's own
    CHECK(counted.since() == std::vector<std::int64_t>{0, 1, 0});
  }
  CHECK(core.kept == 0);
  CHECK(counted.since() == std::vector<std::int64_t>{0, 1, 1});
}

TEST_CASE("tf: an exchange has its splits, and returns the received ones") {
  FakeCore core;
  const Node node("HvdAlltoall", "rows");
  Run run({floats({1, 2, 3}), int32s({1, 2}), ticket()});
  run.begin(node);
  CHECK(core.at(0).splits == Shape{1, 2});
  core.end_with(0, {{{5, 6}, {2}}}, {2, 0});
  CHECK(values(run.output(0)) == Floats{5, 6});
  CHECK(run.output(1).shape == Shape{2});
  CHECK(run.output(1).as<std::int32_t>()[0] == 2);
  CHECK(run.output(1).as<std::int32_t>()[1] == 0);
}

TEST_CASE("tf: a rank's rows of a sum") {
  FakeCore core;  // this is the second of two ranks
  const Node node("HvdReducescatter", "rows");
  Run run(with_ticket(floats({1, 2, 3, 4, 5, 6}, {3, 2})));
  run.begin(node);
  CHECK(core.at(0).output_shapes == std::vector<Shape>{{1, 2}});
  core.end(0);
  CHECK(run.output(0).shape == Shape{1, 2});
}

TEST_CASE("tf: barrier and join match those outside of TensorFlow, also in a loop") {
  FakeCore core;
  const Node barrier("HvdBarrier", "scope/HvdBarrier"), join("HvdJoin", "scope/HvdJoin");
  Run met({}, 1, 3), joined({}, 1, 3);
  met.begin(barrier);
  joined.begin(join);
  CHECK(core.names() == std::vector<std::string>{"barrier.noname", "join.noname"});
  core.end(0);
  core.end_with(1, {}, {}, 1);
  CHECK(met.ended() == 1);
  CHECK(joined.output(0).as<std::int32_t>()[0] == 1);
}

TEST_CASE("tf: an invalid call is reported, and nothing is sent") {
  FakeCore core;
  struct Case {
    const char* op;
    std::vector<Tensor> inputs;
    const char* text;
  };
  const std::vector<Case> cases{
      {"HvdAllreduce", with_ticket(of_type(kString, {1})),
       "x: tensors of TensorFlow's type 7 cannot be sent to other ranks"},
      {"HvdAllgather", with_ticket(of_type(kFloat, {})),
       "Allgather of x needs a tensor of at least one dimension; reshape it to [1]"},
      {"HvdReducescatter", with_ticket(of_type(kFloat, {})),
       "Reducescatter does not support scalar inputs"},
      {"HvdAlltoall",
       {floats({1}), of_type(kInt32, {1, 1}), ticket()},
       "the splits of x must be a vector: the rows for each rank"},
  };
  for (const Case& each : cases) {
    const Node node(each.op, "x");
    Run run(each.inputs);
    run.begin(node);
    CHECK(run.ended() == 1);
    CHECK(run.code() == static_cast<int>(Code::kInvalidArgument));
    CHECK(run.text() == each.text);
  }
  CHECK(core.all.empty());
}

TEST_CASE("tf: out of memory in TensorFlow is its own failure") {
  FakeCore core;
  const Node node("HvdReducescatter", "x");
  Run run({Tensor{kFloat, {1LL << 40}, std::make_shared<Memory>(8)}, ticket()});
  run.begin(node);
  CHECK(run.ended() == 1);
  CHECK(run.text() == "out of memory");
  CHECK(core.all.empty());
}

}  // namespace hvd::tf::test
