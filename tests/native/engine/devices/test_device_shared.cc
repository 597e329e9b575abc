// Device memory that the ranks share, through whole engines: found by address, reduced in place,
// given back behind what uses it.
#include <doctest/doctest.h>

#include "device_engines.h"

namespace hvd::test {
namespace {

constexpr std::size_t kCount = 1000;

Request allocation(int device, std::int64_t bytes = kCount * sizeof(float)) {
  Request request = plain_request(Kind::kAllocate);
  request.sizes = {bytes};
  TensorMeta meta;
  meta.dtype = Dtype::kUint8;
  meta.device = device;
  meta.shape = {bytes};
  request.tensors = {meta};
  return request;
}

Outcome allocate(Engine& engine, int device, std::int64_t bytes = kCount * sizeof(float)) {
  return give(engine, allocation(device, bytes), {Operand{}});
}

void write(const Buffer& buffer, const std::vector<float>& values) {
  const FakeMemory* memory = FakeMemory::at(buffer.data());
  REQUIRE((memory != nullptr));
  memory->open(true);
  std::memcpy(buffer.data(), values.data(), values.size() * sizeof(float));
  memory->open(false);
}

std::vector<float> read(const Buffer& buffer, std::size_t count = kCount) {
  const FakeMemory* memory = FakeMemory::at(buffer.data());
  memory->open(true);
  const auto* const values = reinterpret_cast<const float*>(buffer.data());
  std::vector<float> copy(values, values + count);
  memory->open(false);
  return copy;
}

float* element(const Buffer& buffer, std::size_t index) {
  return reinterpret_cast<float*>(buffer.data()) + index;
}

}  // namespace

TEST_CASE("device shared: reduced in place by address, for any numbers of the devices") {
  for (const int size : {2, 3}) {
    FakeMachine machine(size);
    Engines engines = engines_on(machine, size);
    on_every_rank(engines, [&](Engine& engine, int rank) {
      const int device = rank % kFakeDevices;
      const Outcome given = allocate(engine, device);
      REQUIRE(given.status.message == "");
      REQUIRE(given.outputs.size() == 1);
      const Buffer& buffer = *given.outputs.front();
      CHECK(buffer.device == device);
      CHECK(buffer.bytes == kCount * sizeof(float));
      machine[rank].calls();
      for (int round = 0; round < 3; ++round) {  // agreed on, then by its slot of the cache
        write(buffer, small_numbers<float>(rank, kCount));
        Request request = request_for<float>("views", 300);
        request.tensors.push_back(meta_of<float>({700}));
        float* const second = element(buffer, 300);
        const Outcome outcome =
            give(engine, on_device(request, device),
                 {{element(buffer, 0), element(buffer, 0), 300}, {second, second, 700}});
        CHECK(outcome.status.message == "");
        CHECK(same_bytes(read(buffer), reduced<float>(first_ranks(size), kCount, ReduceOp::kSum)));
        CHECK(has(machine[rank].calls(), "shared allreduce of 2 on " + std::to_string(device)));
      }
      Request release = plain_request(Kind::kRelease);
      release.sizes = {given.number};
      CHECK(run(engine, release).status.message == "");
      CHECK(machine[rank].calls() == std::vector<std::string>{"drain", "release"});
      // The address is no region's any more.
      CHECK(give(engine, device_request<float>("after", kCount, device),
                 {{element(buffer, 0), element(buffer, 0), kCount}})
                .status.message == "");
      CHECK(has(machine[rank].calls(), "allreduce of 1 on " + std::to_string(device)));
    });
  }
}

TEST_CASE(
    "device shared: at different places, or of other ranks, it is moved like private memory") {
  FakeMachine machine(3);
  Engines engines = engines_on(machine, 3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    for (int calls = 0; calls < rank; ++calls)  // ranks need not have asked for equally much before
      CHECK_FALSE(engine.enqueue(allocation(0, -1), {Operand{}}).is_ok());
    const Outcome given = allocate(engine, 0);
    REQUIRE(given.status.message == "");
    const Buffer& buffer = *given.outputs.front();
    const std::size_t at = rank == 0 ? 0 : 100;
    write(buffer, std::vector<float>(kCount, static_cast<float>(rank + 1)));
    machine[rank].calls();
    CHECK(give(engine, device_request<float>("elsewhere", 50, 0),
               {{element(buffer, at), element(buffer, at), 50}})
              .status.message == "");
    CHECK(has(machine[rank].calls(), "allreduce of 1 on 0"));
    CHECK(read(buffer)[at + 49] == 6);
    Request pair = plain_request(Kind::kAddSet);
    pair.sizes = {0, 2};
    const Outcome set = run(engine, pair);
    if (rank == 1) return;
    Request request = device_request<float>("pair", 10, 0);
    request.set = static_cast<int>(set.number);
    CHECK(
        give(engine, request, {{element(buffer, 500), element(buffer, 500), 10}}).status.message ==
        "");
    CHECK(has(machine[rank].calls(), "allreduce of 1 on 0"));
    CHECK(read(buffer)[509] == 4);
  });
}

TEST_CASE("device shared: a joined rank takes part in the allocation") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    if (rank == 1) {
      CHECK(run(engine, plain_request(Kind::kJoin)).status.message == "");
      return;
    }
    const Outcome given = allocate(engine, 0);
    REQUIRE(given.status.message == "");
    write(*given.outputs.front(), std::vector<float>(kCount, 5));
    CHECK(give(engine, device_request<float>("x", kCount, 0),
               {{element(*given.outputs.front(), 0), element(*given.outputs.front(), 0), kCount}})
              .status.message == "");
    CHECK(read(*given.outputs.front())[7] == 5);
    CHECK(run(engine, plain_request(Kind::kJoin)).status.message == "");
  });
}

TEST_CASE("device shared: the other ranks' error names a joined rank without a device") {
  FakeMachine machine(2);
  machine[1].missing = "the fake has no driver";
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const Outcome outcome =
        rank == 1 ? outcome_of(engine, engine.enqueue(plain_request(Kind::kJoin), {}).value())
                  : allocate(engine, 0);
    CHECK(outcome.status.code == Code::kUnavailable);
    CHECK(outcome.status.rank == 1);
    CHECK(outcome.status.message.find("a rank that has joined cannot take part") == 0);
  });
}

TEST_CASE(
    "device shared: one rank has no memory: all are refused alike, and nothing else suffers") {
  FakeMachine machine(3);
  machine[1].room = 64;
  Engines engines = engines_on(machine, 3);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    const Outcome refused = allocate(engine, 0);
    CHECK(refused.status.code == Code::kUnavailable);
    CHECK(refused.status.rank == 1);
    CHECK(refused.status.message ==
          "no device memory of 4000 bytes that the ranks share: a fake is full");
    CHECK(machine[rank].in_use == 0);
    check_usable(engine, "after");
  });
}

TEST_CASE("device shared: host memory on one rank and device memory on another is a mismatch") {
  FakeMachine machine(2);
  Engines engines = engines_on(machine, 2);
  on_every_rank(engines, [&](Engine& engine, int rank) {
    Request request = rank == 0 ? allocation(0) : plain_request(Kind::kAllocate);
    if (rank == 1) request.sizes = {4000};
    request.name = "memory";
    const Outcome outcome = rank == 0 ? give(engine, request, {Operand{}}) : run(engine, request);
    CHECK(outcome.status.code == Code::kMismatch);
    // Another size than the tensor says, or of no device.
    Request odd = allocation(0);
    odd.sizes = {17};
    CHECK(engine.enqueue(odd, {Operand{}}).status().code == Code::kInvalidArgument);
    check_usable(engine, "after");
  });
}

}  // namespace hvd::test
