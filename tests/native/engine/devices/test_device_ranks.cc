// Tensors on devices of ranks that are not alike: other numbers of their devices, two devices in
// one process, ranks that have joined.
#include <doctest/doctest.h>

#include "device_engines.h"

namespace hvd::test {
namespace {

constexpr std::size_t kCount = 40;

// Who has the tensor `number` where: rank 0 all on device 0; rank 1 every other one on device 1;
// rank 2 all on device 1.
int place_of(int rank, int number) {
  if (rank == 1) return number % 2;
  return rank == 2 ? 1 : 0;
}

std::string name_of_tensor(int number) { return "t" + std::to_string(number); }

std::size_t operations_in(const std::vector<std::string>& log) {
  return static_cast<std::size_t>(std::count(log.begin(), log.end(), "end"));
}

void join(Engine& engine) {
  const auto handle = engine.enqueue(plain_request(Kind::kJoin), {});
  REQUIRE(handle.is_ok());
  CHECK(outcome_of(engine, handle.value()).status.message == "");
}

// What `op` over -3 times the numbers of ranks 0 and 2 gives.
std::vector<float> tripled(ReduceOp op) {
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float a = -3 * small_numbers<float>(0, kCount)[i];
    const float b = -3 * small_numbers<float>(2, kCount)[i];
    if (op == ReduceOp::kSum) values[i] = a + b;
    if (op == ReduceOp::kProduct) values[i] = a * b;
    if (op == ReduceOp::kMin) values[i] = std::min(a, b);
    if (op == ReduceOp::kMax) values[i] = std::max(a, b);
  }
  return values;
}

}  // namespace

TEST_CASE("device: fused operations are on one device on every rank, whatever rank 0's are") {
  constexpr int kTensors = 6;
  // Fused when all of them are there; the second and later rounds by the cache.
  const Table table{{"cycle_time_ms", "60000"},
                    {"fusion_threshold", std::to_string(kTensors * kCount * 4)}};
  FakeMachine machine(3);
  Engines engines = engines_on(machine, 3, table);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    std::vector<std::unique_ptr<FakeTensor<float>>> tensors;
    for (int round = 0; round < 4; ++round) {
      tensors.clear();
      std::vector<std::int64_t> handles;
      for (int i = 0; i < kTensors; ++i) {
        const int device = place_of(rank, i);
        tensors.push_back(
            std::make_unique<FakeTensor<float>>(device, small_numbers<float>(rank + i, kCount)));
        handles.push_back(start(engine, device_request<float>(name_of_tensor(i), kCount, device),
                                {in_place(*tensors.back(), kCount)}));
      }
      for (int i = 0; i < kTensors; ++i) {
        CHECK(outcome_of(engine, handles[static_cast<std::size_t>(i)]).status.message == "");
        CHECK(same_bytes(tensors[static_cast<std::size_t>(i)]->values(),
                         reduced<float>({i, i + 1, i + 2}, kCount, ReduceOp::kSum)));
      }
      // The even ones together, and the odd ones: rank 1 has them on two devices.
      CHECK(operations_in(machine[rank].calls()) == 2);
    }
    CHECK(engine.counters().cached.load() > 0);
  });
}

TEST_CASE(
    "device: a tensor that moves to another device is not taken for the one that was agreed on") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int round = 0; round < 6; ++round) {
      const int device = rank == 1 ? round % 2 : 0;
      const FakeTensor<float> tensor(device, small_numbers<float>(rank, kCount));
      CHECK(give(engine, device_request<float>("x", kCount, device), {in_place(tensor, kCount)})
                .status.message == "");
      CHECK(same_bytes(tensor.values(), reduced<float>({0, 1}, kCount, ReduceOp::kSum)));
      const auto log = machine[rank].calls();
      CHECK(std::count(log.begin(), log.end(), "allreduce of 1 on " + std::to_string(device)) == 1);
    }
  });
}

TEST_CASE("device: a joined rank takes part on a device, without a factor") {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    CAPTURE(name_of(op));
    FakeMachine machine(3);
    Engines engines = engines_on(machine, 3);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      if (rank == 1) {
        join(engine);
        CHECK(machine[rank].calls() ==
              std::vector<std::string>{"open", "begin -2 set 0 bytes 160:", "fill 40",
                                       "allreduce of 1 on 1", "end"});
        CHECK(machine[rank].in_use == 0);
        return;
      }
      const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
      Request request = device_request<float>("x", kCount, 0);
      request.op = op;
      request.prescale = -3;
      CHECK(give(engine, request, {in_place(tensor, kCount)}).status.message == "");
      CHECK(tensor.values() == tripled(op));
      CHECK(has(machine[rank].calls(), "allreduce of 1 on 0 times -3"));
      join(engine);
    });
  }
}

TEST_CASE("device: a joined rank takes part in all of an operation or in nothing of it") {
  // Fused when both are there, were it not for rank 1, which has asked for x only.
  const Table table{{"cycle_time_ms", "60000"},
                    {"fusion_threshold", std::to_string(2 * kCount * 4)}};
  FakeMachine machine(3);
  Engines engines = engines_on(machine, 3, table);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> x(0, small_numbers<float>(rank, kCount));
    const FakeTensor<float> y(0, small_numbers<float>(rank, kCount));
    Request request = device_request<float>("x", kCount, 0);
    request.prescale = 2;
    std::vector<std::int64_t> handles;
    if (rank < 2) handles.push_back(start(engine, request, {in_place(x, kCount)}));
    request.name = "y";
    if (rank < 1) handles.push_back(start(engine, request, {in_place(y, kCount)}));
    if (rank > 0) join(engine);
    for (const std::int64_t handle : handles) {
      CHECK(outcome_of(engine, handle).status.message == "");
    }
    CHECK(operations_in(machine[rank].calls()) == 2);
    if (rank < 2) {
      CHECK(same_bytes(x.values(), reduced<float>({0, 1}, kCount, ReduceOp::kSum, 1, 2)));
    }
    if (rank == 0) {
      CHECK(same_bytes(y.values(), reduced<float>({0}, kCount, ReduceOp::kSum, 1, 2)));
      join(engine);
    }
  });
}

TEST_CASE("device: the other ranks' error names a joined rank without a device") {
  FakeMachine machine(2);
  machine[1].missing = "the fake has no driver";
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    const Outcome outcome =
        rank == 1 ? outcome_of(engine, engine.enqueue(plain_request(Kind::kJoin), {}).value())
                  : give(engine, device_request<float>("x", kCount, 0), {in_place(tensor, kCount)});
    CHECK(outcome.status.code == Code::kUnavailable);
    CHECK(outcome.status.rank == 1);
    CHECK(outcome.status.message.find("a rank that has joined cannot take part") == 0);
    CHECK(outcome.status.message.find("the fake has no driver") != std::string::npos);
  });
}

TEST_CASE("device: a joined rank without device memory fails the others' operation, all continue") {
  FakeMachine machine(2);
  machine[1].room = 100;
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    if (rank == 1) return join(engine);
    const FakeTensor<float> tensor(0, small_numbers<float>(rank, kCount));
    const Request request = device_request<float>("allreduce.x", kCount, 0);
    const Outcome outcome = give(engine, request, {in_place(tensor, kCount)});
    CHECK(outcome.status.code == Code::kNoMemory);
    CHECK(outcome.status.message ==
          "rank 1 has no device memory for the 0.2 kB stand-in for allreduce 'x'");
    CHECK(same_bytes(tensor.values(), small_numbers<float>(rank, kCount)));
    machine[1].room = 1000;
    CHECK(give(engine, request, {in_place(tensor, kCount)}).status.message == "");
    join(engine);
  });
}

}  // namespace hvd::test
