// Tensors on devices: what is refused, what fails on all ranks alike, and what is left of it when
// an engine ends.
#include <doctest/doctest.h>

#include "device_engines.h"

namespace hvd::test {
namespace {

constexpr std::size_t kCount = 64;

Status refusal_of(Engine& engine, const Request& request) {
  static std::vector<float> memory(kCount);
  std::vector<Operand> operands(request.tensors.size(), in_place(memory));
  return engine.enqueue(request, operands).status();
}

}  // namespace

TEST_CASE("device: without an accelerator the call is refused and sends no message") {
  FakeMachine machine(2);
  for (int rank = 0; rank < 2; ++rank) machine[rank].missing = "the fake has no driver";
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    // One rank tries, copies to the host and goes on under the same number.
    if (rank == 1) {
      const Status status = refusal_of(engine, device_request<float>("", kCount, 0));
      CHECK(status.code == Code::kInvalidArgument);
      CHECK(status.message ==
            "tensors on a device cannot be used here: the fake has no driver; move the tensor to "
            "the CPU first (tensor.cpu())");
      CHECK(engine.has_accelerator().message == status.message);
      CHECK(engine.why_not_on(0) == "the fake has no driver");
      CHECK(machine[rank].calls() == std::vector<std::string>{"open"});
      CHECK(engine.pending().empty());
    }
    auto values = small_numbers<float>(rank, kCount);
    CHECK(outcome_of(engine, start_sum(engine, "", values)).status.message == "");
    CHECK(same_bytes(values, reduced<float>({0, 1}, kCount, ReduceOp::kSum)));
  });
}

TEST_CASE("device: tensors of one request must be on one existing device") {
  FakeMachine machine(1);
  Engines engines = engines_on(machine, 1);
  on_every_rank(engines, [&](Engine& engine, int /*rank*/) {
    CHECK(engine.has_accelerator().is_ok());
    CHECK(engine.why_not_on(0).empty());
    CHECK(engine.why_not_on(kFakeDevices) == "there is no device 2 here");
    Request request = device_request<float>("group", kCount, 1);
    request.tensors.push_back(request.tensors.front());
    request.tensors.push_back(request.tensors.front());
    request.tensors[2].device = 0;
    CHECK(refusal_of(engine, request).message ==
          "the tensors of group are not all on one device: tensor 0 is on device 1, tensor 2 on "
          "device 0; move them to one, or make them several operations");
    request.tensors[1].device = kCpu;
    CHECK(refusal_of(engine, request).message.find("tensor 1 on the CPU") != std::string::npos);
    CHECK(refusal_of(engine, device_request<float>("x", kCount, 7)).message ==
          "there is no device 7 here");
    CHECK(refusal_of(engine, device_request<float>("x", kCount, -3)).message ==
          "tensor x is on device -3, and no device has a negative number");
    CHECK(engine.pending().empty());
  });
}

TEST_CASE(
    "device: on the host of one rank, on a device of another: an error on all ranks, all "
    "continue") {
  FakeMachine machine(3);
  Engines engines = engines_on(machine, 3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    auto values = small_numbers<float>(rank, kCount);
    const auto handle =
        rank == 1 ? start(engine, device_request<float>("x", kCount, 0), {in_place(tensor, kCount)})
                  : start_sum(engine, "x", values);
    const Outcome outcome = outcome_of(engine, handle);
    CHECK(outcome.status.code == Code::kMismatch);
    CHECK(outcome.status.message ==
          "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but "
          "another rank specified device GPU. (ranks 0, 2: CPU; rank 1: GPU)");
    CHECK(same_bytes(tensor.values(), small_numbers<float>(rank, kCount)));
    check_usable(engine, "host");
    CHECK(give(engine, device_request<float>("d", kCount, 0), {in_place(tensor, kCount)})
              .status.message == "");
    CHECK(same_bytes(tensor.values(), reduced<float>({0, 1, 2}, kCount, ReduceOp::kSum)));
  });
}

TEST_CASE("device: no device memory for a result on one rank fails it on all ranks, all continue") {
  FakeMachine machine(3);
  Engines engines = engines_on(machine, 3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    const Request request = device_request<float>("allgather.g", kCount, 0, Kind::kAllgather);
    const std::vector<Operand> operands{{tensor.data(), nullptr, kCount}};
    if (rank == 2) machine[rank].room = 100;
    Outcome outcome = give(engine, request, operands);
    CHECK(outcome.status.code == Code::kNoMemory);
    CHECK(outcome.status.message ==
          "rank 2 has no device memory for the 0.8 kB output of allgather 'g'");
    CHECK(outcome.outputs.empty());
    CHECK(machine[rank].in_use == 0);
    machine[rank].room = 1000;
    outcome = give(engine, request, operands);
    CHECK(outcome.status.message == "");
    REQUIRE(outcome.outputs.size() == 1);
    CHECK(values_of<float>(*outcome.outputs[0]).size() == 3 * kCount);
    CHECK(machine[rank].in_use == 1);
  });
  for (int rank = 0; rank < 3; ++rank) {  // what begins ends
    const auto log = machine[rank].calls();
    CHECK(std::count(log.begin(), log.end(), "end") == 2);
  }
}

TEST_CASE("device: no memory for a share is an error on that rank, all ranks continue") {
  FakeMachine machine(3);
  machine[2].room = 16;
  Engines engines = engines_on(machine, 3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, 3 * kCount));
    const Request request = device_request<float>("r", 3 * kCount, 0, Kind::kReducescatter);
    const std::vector<Operand> operands{{tensor.data(), nullptr, 3 * kCount}};
    if (rank == 2) {
      const Status status = engine.enqueue(request, operands).status();
      CHECK(status.code == Code::kUnavailable);
      CHECK(status.message == "no memory for the 256 bytes that come out of r");
      machine[rank].room = 1000;
    }
    const Outcome outcome = give(engine, request, operands);
    CHECK(outcome.status.message == "");
    const auto sums = reduced<float>({0, 1, 2}, 3 * kCount, ReduceOp::kSum);
    REQUIRE(outcome.outputs.size() == 1);
    CHECK(values_of<float>(*outcome.outputs[0]) ==
          std::vector<float>(sums.begin() + rank * static_cast<int>(kCount),
                             sums.begin() + (rank + 1) * static_cast<int>(kCount)));
  });
}

TEST_CASE(
    "device: what cannot be given to one rank's device ends all ranks with that rank's name") {
  FakeMachine machine(3);
  Engines engines = engines_on(machine, 3);
  machine[1].broken = true;
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    const Outcome outcome =
        give(engine, device_request<float>("x", kCount, 0), {in_place(tensor, kCount)});
    CHECK(outcome.status.code == Code::kInternal);
    CHECK(outcome.status.message == "rank 1: the fake cannot launch");
    CHECK(outcome.status.rank == 1);
    CHECK((outcome.event == nullptr));
    CHECK(has(machine[rank].calls(), "abandon"));  // before any rank is notified
  });
}

TEST_CASE(
    "device: after an abort an event that was not reached tells the cause, the others go on") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    const Request request = device_request<float>("x", kCount, 0);
    const Outcome done = give(engine, request, {in_place(tensor, kCount)});
    machine[rank].held = true;
    const Outcome lost = give(engine, request, {in_place(tensor, kCount)});
    const auto unheard =
        start(engine, device_request<float>("y", kCount, 0), {in_place(tensor, kCount)});
    CHECK(outcome_of(engine, unheard).status.message == "");  // both ranks are there
    if (rank == 1) engine.abort("enough");
    const auto waits = engine.enqueue(plain_request(Kind::kBarrier, "never"), {});
    if (waits.is_ok()) CHECK(outcome_of(engine, waits.value()).status.code == Code::kAborted);
    CHECK(has(machine[rank].calls(), "abandon"));
    CHECK(done.event->query().value());
    CHECK(done.event->stream_wait(nullptr).is_ok());
    CHECK(lost.event->stream_wait(nullptr).message == "Rank 1 failed: enough");
    CHECK(lost.event->query().status().rank == 1);
    engine.shutdown();
    CHECK(lost.event->stream_wait(nullptr).code == Code::kAborted);
    CHECK(machine[rank].calls().back() == "gone");
  });
}

TEST_CASE("device: an orderly shutdown waits for the device and its users") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  std::vector<Outcome> outcomes(2);
  run_ranks(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    machine[rank].held = true;
    machine[rank].busy = true;
    outcome = give(engine, device_request<float>("g", kCount, 0, Kind::kAllgather),
                   {{tensor.data(), nullptr, kCount}});
    std::thread leaving([&] { engine.shutdown(); });
    while (machine[rank].looks == 0) std::this_thread::yield();
    CHECK_FALSE(has(machine[rank].calls(), "abandon"));
    machine[rank].held = false;
    machine[rank].busy = false;
    leaving.join();
    CHECK(machine[rank].calls() == std::vector<std::string>{"abandon", "gone"});
    CHECK(outcome.event->query().value());
    CHECK(outcome.event->stream_wait(nullptr).is_ok());
  });
  engines.clear();
  for (Outcome& outcome : outcomes) {  // its memory outlives the engine
    REQUIRE(outcome.outputs.size() == 1);
    auto expected = small_numbers<float>(0, kCount);
    const auto more = small_numbers<float>(1, kCount);
    expected.insert(expected.end(), more.begin(), more.end());
    CHECK(values_of<float>(*outcome.outputs[0]) == expected);
    outcome.outputs.clear();
  }
  CHECK(machine[0].in_use == 0);
  CHECK(machine[1].in_use == 0);
}

TEST_CASE("device: calls after shutdown get its error") {
  FakeMachine machine(1);
  Engines engines = engines_on(machine, 1);
  const FakeTensor<float> tensor(0, std::vector<float>(kCount));
  engines[0]->shutdown();
  CHECK(engines[0]->has_accelerator().is_ok());  // not asked for any more
  const Outcome outcome =
      give(*engines[0], device_request<float>("x", kCount, 0), {in_place(tensor, kCount)});
  CHECK(outcome.status.code == Code::kShutdown);
  CHECK(machine[0].calls().empty());
}

}  // namespace hvd::test
