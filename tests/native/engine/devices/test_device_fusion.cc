// Operations on devices are fused by what is in flight there: through whole engines, on fake
// accelerators whose events are reached when the test says so.
#include <doctest/doctest.h>

#include "device_engines.h"

namespace hvd::test {
namespace {

constexpr std::size_t kCount = 4;
constexpr std::int64_t kForEverNs = std::int64_t{3600} * 1'000'000'000;

// Nothing is held for longer than `hold_ns`, where what is in flight has not been for that long.
Engines engines_that_hold(int size, std::int64_t hold_ns) {
  Engines engines;
  for (auto& mesh : make_local_meshes(size, options_of({}).mesh)) {
    EngineOptions options = options_of({});
    options.open_accelerator = &FakeMachine::open;
    options.controller.hold_ns = hold_ns;
    engines.push_back(std::make_unique<Engine>(std::move(mesh), options));
  }
  return engines;
}

// Tensors of one rank on device 0, one after the other.
class Tensors {
 public:
  Tensors(Engine& engine, int rank) : engine_(engine), rank_(rank) {}

  std::int64_t begin(const std::string& name, int set = 0) {
    Request request = device_request<float>(name, kCount, 0);
    request.set = set;
    tensors_.push_back(std::make_unique<FakeTensor<float>>(0, small_numbers<float>(rank_, kCount)));
    return start(engine_, request, {in_place(*tensors_.back(), kCount)});
  }
  void end(std::int64_t handle) { CHECK(outcome_of(engine_, handle).status.message == ""); }
  // The same, by a user thread that looks now and then instead of waiting.
  void look_until_given(std::int64_t handle) {
    for (Result<bool> given = false; !given.value(); std::this_thread::yield()) {
      given = engine_.poll(handle, false);
      REQUIRE(given.status().message == "");
    }
  }
  void check(const std::vector<int>& ranks) const {
    for (const auto& tensor : tensors_)
      CHECK(same_bytes(tensor->values(), reduced<float>(ranks, kCount, ReduceOp::kSum)));
  }

 private:
  Engine& engine_;
  const int rank_;
  std::vector<std::unique_ptr<FakeTensor<float>>> tensors_;
};

// Until rank 0 knows that everybody has asked for what it has asked for itself: another rank may
// have gone on, to what rank 0 asks for only after this.
void agree(Engine& engine, int rank) {
  CHECK(run(engine, plain_request(Kind::kBarrier, "asked")).status.message == "");
  const auto somebody_is_missing = [&] {
    const std::vector<Pending> all = engine.pending();
    return std::any_of(all.begin(), all.end(), [](const Pending& one) {
      return !one.missing.empty() && one.missing.front() != 0;
    });
  };
  while (rank == 0 && somebody_is_missing()) std::this_thread::yield();
}

std::vector<std::string> reductions_in(FakeDevice& device) {
  std::vector<std::string> all;
  for (const std::string& line : device.calls())
    if (line.rfind("allreduce", 0) == 0) all.push_back(line);
  return all;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "device: with one operation in flight 160 gradients are held, and start as one afterwards") {
  FakeMachine machine(3);
  machine[0].held = true;  // rank 0 decides, by its own
  Engines engines = engines_that_hold(3, kForEverNs);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Tensors tensors(engine, rank);
    for (int round = 0; round < 2; ++round) {  // the second time by the cache's numbers
      tensors.end(tensors.begin("first"));     // alone, and at once
      std::vector<std::int64_t> handles;
      for (int i = 0; i < 160; ++i) handles.push_back(tensors.begin("g" + std::to_string(i)));
      agree(engine, rank);
      if (rank == 0) machine[0].held = false;
      for (const std::int64_t handle : handles) tensors.end(handle);
      CHECK(reductions_in(machine[rank]) == Lines{"allreduce of 1 on 0", "allreduce of 160 on 0"});
      if (rank == 0) machine[0].held = true;
      CHECK(run(engine, plain_request(Kind::kBarrier, "round")).status.message == "");
    }
    tensors.check({0, 1, 2});
  });
}

TEST_CASE(
    "device: calls that wait for their operation do not wait for the one before on the device") {
  FakeMachine machine(2);
  machine[0].held = true;
  Engines engines = engines_that_hold(2, kForEverNs);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Tensors tensors(engine, rank);
    for (const char* name : {"a", "b", "c"}) tensors.end(tensors.begin(name));
    CHECK(reductions_in(machine[rank]) == Lines(3, "allreduce of 1 on 0"));
    tensors.check({0, 1});
  });
}

TEST_CASE("device: operations in flight may wait for held ones, which start after a time") {
  FakeMachine machine(2);
  machine[0].held = true;  // for ever
  Engines engines = engines_that_hold(2, 1'000'000);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Tensors tensors(engine, rank);
    for (const char* name : {"a", "b", "c"}) tensors.look_until_given(tensors.begin(name));
    CHECK(reductions_in(machine[rank]) == Lines(3, "allreduce of 1 on 0"));
    tensors.check({0, 1});
  });
}

TEST_CASE("device: a set without rank 0 does not wait for rank 0's device") {
  FakeMachine machine(3);
  machine[0].held = true;
  Engines engines = engines_that_hold(3, kForEverNs);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Request others = plain_request(Kind::kAddSet, "others");
    others.sizes = {1, 2};
    const int set = static_cast<int>(run(engine, others).number);
    Tensors tensors(engine, rank);
    tensors.end(tensors.begin("x"));
    tensors.check({0, 1, 2});
    if (rank > 0) {
      Tensors theirs(engine, rank);
      theirs.look_until_given(theirs.begin("y", set));
      theirs.check({1, 2});
    }
    CHECK(run(engine, plain_request(Kind::kBarrier, "end")).status.message == "");
  });
}

TEST_CASE("device: nothing is held while a graph is captured") {
  FakeMachine machine(2);
  machine[0].held = true;
  Engines engines = engines_that_hold(2, kForEverNs);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Tensors tensors(engine, rank);
    tensors.end(tensors.begin("before"));  // in flight all the time
    machine[rank].captures = true;
    tensors.end(tensors.begin("first"));
    for (const char* name : {"a", "b"}) tensors.look_until_given(tensors.begin(name));
    CHECK(reductions_in(machine[rank]) == Lines(4, "allreduce of 1 on 0"));
    tensors.check({0, 1});
  });
}

TEST_CASE(
    "device: an engine that ends answers held operations, in an orderly shutdown with results") {
  for (const bool in_peace : {true, false}) {
    CAPTURE(in_peace);
    FakeMachine machine(2);
    machine[0].held = true;
    Engines engines = engines_that_hold(2, kForEverNs);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      Tensors tensors(engine, rank);
      tensors.end(tensors.begin("first"));
      const std::int64_t held = tensors.begin("held");
      agree(engine, rank);
      CHECK_FALSE(engine.poll(held, false).value());
      CHECK(run(engine, plain_request(Kind::kBarrier, "looked")).status.message == "");
      if (!in_peace && rank == 1) engine.abort("of its own");
      if (in_peace) engine.shutdown();
      while (!engine.poll(held, false).value()) std::this_thread::yield();
      const Status status = outcome_of(engine, held).status;
      CHECK(status.message == (in_peace ? "" : "Rank 1 failed: of its own"));
      CHECK(reductions_in(machine[rank]) == Lines(in_peace ? 2 : 1, "allreduce of 1 on 0"));
    });
  }
}

}  // namespace hvd::test
