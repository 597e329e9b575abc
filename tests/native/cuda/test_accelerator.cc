// The accelerator as the engine uses it: events, groups, devices in turn, and the end.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "base/deadline.h"
#include "base/failpoint.h"
#include "collective/cpu_backend.h"
#include "cuda/accelerator.h"
#include "cuda/rings.h"

namespace hvd::cuda {
namespace {

using hvd::test::everybody;
using hvd::test::group_of;
using test::check_nothing_left;
using test::fake_driver;

using Numbers = std::vector<std::int32_t>;

// A rank of an engine.
class EngineRank {
 public:
  EngineRank(int rank, Mesh& mesh, const std::string& operations)
      : rank_(rank), mesh_(mesh), cpu_(mesh) {
    AcceleratorOptions options;
    options.driver = HVD_FAKE_CUDA;
    options.arena_bytes = 4096;
    options.operations = operations;
    auto opened = CudaAccelerator::open(mesh, cpu_, options);
    REQUIRE(opened.status().message == "");
    accelerator_ = opened.take();
  }
  int rank() const { return rank_; }
  Mesh& mesh() { return mesh_; }
  CpuBackend& cpu() { return cpu_; }
  CudaAccelerator& accelerator() { return *accelerator_; }
  void leave() { accelerator_.reset(); }
  // What the rank's frontend uses: with a stream of its own, for ranks that are threads of one
  // process would wait for each other in the default one.
  Device& frontend(int number) {
    std::shared_ptr<Device>& device = frontend_[number];
    if (device == nullptr) {
      auto opened = Device::open(fake_driver(), number, rank_);
      REQUIRE(opened.status().message == "");
      device = opened.take();
    }
    return *device;
  }
  CUstream stream(int number) { return frontend(number).stream(); }

 private:
  int rank_;
  Mesh& mesh_;
  CpuBackend cpu_;
  std::unique_ptr<CudaAccelerator> accelerator_;
  std::map<int, std::shared_ptr<Device>> frontend_;
};

void with_engines(int size, int devices, const std::function<void(EngineRank&)>& body,
                  const std::string& operations = "auto") {
  fake_cuda_reset();
  fake_cuda_set_devices(devices);
  const auto meshes = make_local_meshes(size, {});
  hvd::test::run_ranks(size, [&](int rank) {
    EngineRank engine(rank, *meshes[static_cast<std::size_t>(rank)], operations);
    body(engine);
  });
  check_nothing_left();
}

// Memory of a device with these numbers in it, on the frontend's stream.
class Tensor {
 public:
  Tensor(EngineRank& engine, int number, const Numbers& numbers)
      : count_(numbers.size()), device_(engine.frontend(number)) {
    auto memory = device_.allocate(bytes());
    REQUIRE(memory.status().message == "");
    memory_ = memory.take();
    copy(data(), numbers.data());
  }
  void* data() const { return memory_.get(); }
  Operand operand() const { return {data(), data(), count_}; }
  // What is there when the stream has come so far.
  Numbers read() const {
    Numbers numbers(count_);
    copy(numbers.data(), data());
    return numbers;
  }

 private:
  std::size_t bytes() const { return count_ * sizeof(std::int32_t); }
  void copy(void* to, const void* from) const {
    const Current current(device_);
    REQUIRE(device_.driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                           reinterpret_cast<CUdeviceptr>(from), bytes(),
                                           device_.stream()) == CUDA_SUCCESS);
    REQUIRE(device_.driver().cuStreamSynchronize(device_.stream()) == CUDA_SUCCESS);
  }

  std::size_t count_;
  Device& device_;
  std::shared_ptr<void> memory_;
};

Reduction sum() {
  Reduction reduction;
  reduction.dtype = Dtype::kInt32;
  return reduction;
}

// One operation as the engine does it; the frontend's stream comes behind it.
void operate(EngineRank& engine, int device, const Group& group,
             const std::function<Status(Backend&)>& operation) {
  auto ready = engine.accelerator().record(device, engine.stream(device));
  REQUIRE(ready.status().message == "");
  const auto backend = engine.accelerator().begin(device, group, 64, {ready.value()});
  REQUIRE(backend.status().message == "");
  REQUIRE(operation(*backend.value()).message == "");
  auto done = engine.accelerator().end();
  REQUIRE(done.status().message == "");
  REQUIRE(done.value()->stream_wait(engine.stream(device)).message == "");
}

void allreduce(EngineRank& engine, int device, const Group& group, const Tensor& tensor) {
  operate(engine, device, group,
          [&](Backend& backend) { return backend.allreduce(group, {tensor.operand()}, sum()); });
}

// The end of an engine that nobody aborts (engine.cc). Who leaves without it takes whatever data
// there is, and so do its peers.
void await_peace(EngineRank& engine) {
  while (!engine.accelerator().idle()) std::this_thread::yield();
}

Numbers numbers_of(int rank) { return {rank + 1, 10 * (rank + 1), -rank, 7}; }

TEST_CASE("an operation between a ready event and a done event, with every backend") {
  for (const char* const operations : {"ring", "staged"}) {
    CAPTURE(operations);
    with_engines(
        3, 1,
        [](EngineRank& engine) {
          const Tensor tensor(engine, 0, numbers_of(engine.rank()));
          allreduce(engine, 0, everybody(3, engine.rank()), tensor);
          CHECK(tensor.read() == Numbers{6, 60, -3, 21});
          allreduce(engine, 0, everybody(3, engine.rank()), tensor);
          CHECK(tensor.read() == Numbers{18, 180, -9, 63});
        },
        operations);
  }
}

TEST_CASE("each team connects separately, once") {
  with_engines(3, 1, [](EngineRank& engine) {
    const int rank = engine.rank();
    const Tensor tensor(engine, 0, numbers_of(rank));
    for (int round = 0; round < 2; ++round) {
      allreduce(engine, 0, everybody(3, rank), tensor);
      if (rank != 1) allreduce(engine, 0, group_of({0, 2}, rank, 1), tensor);
    }
    // 3 ranks: 6; of 0 and 2: 12; then 12 + 6 + 12 = 30, 60.
    CHECK(tensor.read().front() == (rank == 1 ? 30 : 60));
  });
}

TEST_CASE("the host does not wait: the operation runs after the ready event") {
  with_engines(2, 1, [](EngineRank& engine) {
    const Tensor tensor(engine, 0, numbers_of(engine.rank()));
    allreduce(engine, 0, everybody(2, engine.rank()), tensor);  // they have met
    const auto device = Device::open(fake_driver(), 0, engine.rank());
    CUstream const late = device.value()->stream();
    fake_cuda_hold(late);
    auto ready = engine.accelerator().record(0, late);
    const Group group = everybody(2, engine.rank());
    const auto backend = engine.accelerator().begin(0, group, 64, {ready.value()});
    REQUIRE(backend.value()->allreduce(group, {tensor.operand()}, sum()).message == "");
    auto done = engine.accelerator().end();
    CHECK(!ready.value()->query().value());
    CHECK(!done.value()->query().value());
    CHECK(!engine.accelerator().idle());
    fake_cuda_release(late);
    REQUIRE(done.value()->stream_wait(engine.stream(0)).message == "");
    CHECK(tensor.read() == Numbers{6, 60, -2, 28});
    CHECK(done.value()->query().value());
  });
}

TEST_CASE("durations of operations and of waits") {
  constexpr auto kLate = std::chrono::milliseconds(5);
  with_engines(2, 2, [&](EngineRank& engine) {
    const Tensor tensor(engine, 0, numbers_of(engine.rank()));
    allreduce(engine, 0, everybody(2, engine.rank()), tensor);  // they have met
    tensor.read();
    const DeviceTimes before = engine.accelerator().times();
    CHECK(before.busy_ns > 0);
    if (engine.rank() == 1) std::this_thread::sleep_for(kLate);  // what is measured
    allreduce(engine, 0, everybody(2, engine.rank()), tensor);
    tensor.read();
    const DeviceTimes after = engine.accelerator().times();
    CHECK(after.busy_ns > before.busy_ns);
    CHECK(after.exposed_ns >= before.exposed_ns);
    const Tensor away(engine, 1, numbers_of(engine.rank()));
    allreduce(engine, 1, everybody(2, engine.rank()), away);  // ferried: not timed
    CHECK(away.read() == Numbers{3, 30, -1, 14});
    CHECK(engine.accelerator().times().busy_ns == after.busy_ns);
    await_peace(engine);
  });
}

TEST_CASE("events have spans by the host's clock where operations are measured") {
  with_engines(1, 1, [](EngineRank& engine) {
    const Group group = everybody(1, 0);
    const Tensor tensor(engine, 0, numbers_of(0));
    const auto slow = Device::open(fake_driver(), 0, 0);
    const auto operation = [&](CUstream inputs) {
      auto ready = engine.accelerator().record(0, inputs);
      const auto backend = engine.accelerator().begin(0, group, 16, {ready.value()});
      REQUIRE(backend.value()->allreduce(group, {tensor.operand()}, sum()).message == "");
      return engine.accelerator().end().take();
    };
    const DeviceEventPtr unmeasured = operation(engine.stream(0));
    engine.accelerator().measure(true);
    const std::int64_t before = now_ns();
    fake_cuda_hold(slow.value()->stream());
    const DeviceEventPtr measured = operation(slow.value()->stream());
    CHECK_FALSE(measured->span().has_value());  // it is not there yet
    fake_cuda_release(slow.value()->stream());
    REQUIRE(measured->stream_wait(engine.stream(0)).message == "");
    tensor.read();
    while (measured->span_pending()) std::this_thread::yield();
    CHECK_FALSE(unmeasured->span().has_value());
    const auto span = measured->span();
    REQUIRE(span.has_value());
    CHECK(span->queued_ns >= before);
    CHECK(span->begun_ns >= span->queued_ns);
    CHECK(span->done_ns >= span->begun_ns);
  });
}

TEST_CASE("devices in turn: one rank uses another than its team's home") {
  with_engines(2, 2, [](EngineRank& engine) {
    const int rank = engine.rank();
    const Group group = everybody(2, rank);
    for (const int device : {0, 1, 0, 1}) {
      const int mine = rank == 0 ? device : 0;
      const Tensor tensor(engine, mine, numbers_of(rank));
      allreduce(engine, mine, group, tensor);
      CHECK(tensor.read() == Numbers{3, 30, -1, 14});
    }
  });
}

TEST_CASE("every operation on another device than home") {
  with_engines(2, 2, [](EngineRank& engine) {
    const int rank = engine.rank();
    const Group group = everybody(2, rank);
    const Tensor at_home(engine, 0, {1});
    allreduce(engine, 0, group, at_home);

    const Tensor in(engine, 1, numbers_of(rank)), out(engine, 1, Numbers(8, 0));
    auto* const to = static_cast<std::byte*>(out.data());
    const auto* const from = static_cast<const std::byte*>(in.data());
    operate(engine, 1, group, [&](Backend& backend) {
      return backend.allgather(group, {{from, {to, to + 16}, {16, 16}}});
    });
    CHECK(out.read() == Numbers{1, 10, 0, 7, 2, 20, -1, 7});
    operate(engine, 1, group, [&](Backend& backend) {
      return backend.alltoall(group, {{from, from + 8}, {8, 8}, {to, to + 8}, {8, 8}});
    });
    CHECK(out.read() ==
          (rank == 0 ? Numbers{1, 10, 2, 20, 2, 20, -1, 7} : Numbers{0, 7, -1, 7, 2, 20, -1, 7}));
    operate(engine, 1, group, [&](Backend& backend) {
      return backend.reducescatter(group, {{from, to, {0, 3, 4}}}, sum());
    });
    CHECK(out.read().front() == (rank == 0 ? 3 : 14));
    operate(engine, 1, group, [&](Backend& backend) {
      return backend.broadcast(group, {{rank == 1 ? from : nullptr, to, 16}}, 1);
    });
    const Numbers sent = out.read();
    CHECK(Numbers(sent.begin(), sent.begin() + 4) == numbers_of(1));
  });
}

TEST_CASE("a rank that has joined stands in on any device") {
  with_engines(2, 1, [](EngineRank& engine) {
    const Group group = everybody(2, engine.rank());
    if (engine.rank() == 0) {
      const Tensor tensor(engine, 0, numbers_of(0));
      allreduce(engine, 0, group, tensor);
      CHECK(tensor.read() == numbers_of(0));
      return;
    }
    CudaAccelerator& accelerator = engine.accelerator();
    const auto backend = accelerator.begin(kAnyDevice, group, 64, {});
    REQUIRE(backend.status().message == "");
    auto memory = accelerator.allocate(kAnyDevice, 16);
    REQUIRE(memory.status().message == "");
    void* const data = memory.value().get();
    REQUIRE(accelerator.fill_identity(Dtype::kInt32, ReduceOp::kSum, data, 4).message == "");
    REQUIRE(backend.value()->allreduce(group, {{data, data, 4}}, sum()).message == "");
    REQUIRE(accelerator.end().is_ok());
    await_peace(engine);
  });
}

TEST_CASE("shared memory of ranks: after the team has connected, drained before release") {
  with_engines(2, 2, [](EngineRank& engine) {
    CudaAccelerator& accelerator = engine.accelerator();
    const Group group = everybody(2, engine.rank());
    auto region = accelerator.share(0, group, 4 * sizeof(std::int32_t));
    REQUIRE(region.status().message == "");
    CHECK(region.value().offsets[static_cast<std::size_t>(engine.rank())] == 0);
    const auto elsewhere = accelerator.share(engine.rank(), group, 16);  // rank 1 on another device
    CHECK(elsewhere.status().code == Code::kInvalidArgument);
    CHECK(elsewhere.status().rank == 1);
    void* const data = region.value().mine.get();
    auto* const numbers = static_cast<float*>(data);
    std::fill_n(numbers, 4, 1.0F + static_cast<float>(engine.rank()));  // the fake's is the host's
    Reduction reduction = sum();
    reduction.dtype = Dtype::kFloat32;
    operate(engine, 0, group, [&](Backend& backend) {
      return backend.allreduce_shared(group, {{data, data, 4}}, region.value().offsets, reduction);
    });
    REQUIRE(accelerator.drain().message == "");
    CHECK(numbers[0] == 3);
    CHECK(numbers[3] == 3);
    await_peace(engine);
  });
}

TEST_CASE("shared memory of ranks lives while a queue uses it, then nothing is left") {
  with_engines(2, 1, [](EngineRank& engine) {
    CudaAccelerator& accelerator = engine.accelerator();
    const Group group = everybody(2, engine.rank());
    auto region = accelerator.share(0, group, 1 << 16);
    REQUIRE(region.status().message == "");
    if (engine.rank() == 1) return;  // and never comes
    Reduction reduction = sum();
    reduction.dtype = Dtype::kFloat32;
    void* const data = region.value().mine.get();
    const auto backend = accelerator.begin(0, group, 64, {});
    REQUIRE(
        backend.value()
            ->allreduce_shared(group, {{data, data, 1 << 14}}, region.value().offsets, reduction)
            .message == "");
    const auto done = accelerator.end();
    region = Result<DeviceRegion>(DeviceRegion{});
    CHECK(!done.value()->query().value());
    accelerator.abandon();
    engine.leave();
    CHECK(done.value()->query().value());
  });
}

TEST_CASE("no memory is shared where the backend is not the ring") {
  with_engines(
      2, 1,
      [](EngineRank& engine) {
        const auto region = engine.accelerator().share(0, everybody(2, engine.rank()), 64);
        CHECK(region.status().code == Code::kUnavailable);
        CHECK(region.status().message ==
              "this device backend cannot share memory between ranks, the ring can");
      },
      "staged");
}

TEST_CASE("a missing device is named by every request") {
  with_engines(1, 1, [](EngineRank& engine) {
    CHECK(engine.accelerator().record(3, nullptr).status().code == Code::kInvalidArgument);
    CHECK(engine.accelerator().allocate(3, 1).status().code == Code::kInvalidArgument);
    CHECK(engine.accelerator().begin(3, everybody(1, 0), 4, {}).status().message ==
          "rank 0: there is no device 3, this process sees 1 (CUDA_VISIBLE_DEVICES)");
  });
}

TEST_CASE("peace: idle when all have done with each other's memory, then nothing is left") {
  with_engines(3, 1, [](EngineRank& engine) {
    const Tensor tensor(engine, 0, numbers_of(engine.rank()));
    allreduce(engine, 0, everybody(3, engine.rank()), tensor);
    await_peace(engine);
    engine.accelerator().abandon();
    engine.leave();
    CHECK(tensor.read() == Numbers{6, 60, -3, 21});
  });
}

void wait_for_one_that_never_comes() {
  with_engines(2, 1, [](EngineRank& engine) {
    const Group group = everybody(2, engine.rank());
    const Tensor tensor(engine, 0, numbers_of(engine.rank()));
    allreduce(engine, 0, group, tensor);
    tensor.read();
    if (engine.rank() == 1) return;
    auto ready = engine.accelerator().record(0, engine.stream(0));
    const auto backend = engine.accelerator().begin(0, group, 64, {ready.value()});
    REQUIRE(backend.status().message == "");
    REQUIRE(backend.value()->allreduce(group, {tensor.operand()}, sum()).message == "");
    const auto done = engine.accelerator().end();
    CHECK(!done.value()->query().value());
    engine.accelerator().abandon();
    REQUIRE(done.value()->stream_wait(engine.stream(0)).message == "");
    tensor.read();  // the stream goes on
    CHECK(done.value()->query().value());
    CHECK(backend.value()->allreduce(group, {tensor.operand()}, sum()).code == Code::kShutdown);
  });
}

TEST_CASE("a missing rank: the device is released, and the engine ends without a call") {
  wait_for_one_that_never_comes();
}

TEST_CASE("A20 an exception in flight still releases the device") {
  arm_failpoints("cuda.end:throw@1");
  wait_for_one_that_never_comes();
  CHECK(failpoint_passages("cuda.end") > 1);
  arm_failpoints("");
}

TEST_CASE("the event of what becomes part of a graph says so") {
  with_engines(1, 1, [](EngineRank& engine) {
    const Group group = everybody(1, engine.rank());
    for (const bool captured : {false, true}) {
      if (captured) fake_cuda_fail("cuStreamIsCapturing", 0, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      REQUIRE(engine.accelerator().begin(0, group, 64, {}).status().message == "");
      const auto done = engine.accelerator().end();
      fake_cuda_fail_nothing();
      REQUIRE(done.status().message == "");
      CHECK(done.value()->captured() == captured);
    }
  });
}

TEST_CASE("events and memory outlive the accelerator") {
  with_engines(1, 1, [](EngineRank& engine) {
    const auto event = engine.accelerator().record(0, nullptr);
    const auto memory = engine.accelerator().allocate(0, 64);
    engine.leave();
    CHECK(event.value()->stream_wait(nullptr).message == "");
    CHECK(event.value()->query().is_ok());
  });
}

OpenAccelerator plugins() {
  void* const library = ::dlopen(HVD_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  const auto open = reinterpret_cast<OpenAccelerator>(::dlsym(library, kCudaSymbol));
  REQUIRE((open != nullptr));
  return open;
}

TEST_CASE("the plugin reports why there is no accelerator") {
  const auto meshes = make_local_meshes(1, {});
  CpuBackend cpu(*meshes[0]);
  AcceleratorOptions options;
  options.driver = "/nowhere/libcuda.so.1";
  Status why;
  CHECK(plugins()(kAcceleratorVersion, *meshes[0], cpu, options, why) == nullptr);
  CHECK(why.code == Code::kUnavailable);
  CHECK(why.message ==
        "there is no CUDA driver here (/nowhere/libcuda.so.1: cannot open shared object file: No "
        "such file or directory): install NVIDIA's driver on this machine");
  CHECK(plugins()(kAcceleratorVersion + 1, *meshes[0], cpu, options, why) == nullptr);
  CHECK(why.message == "libhvd_cuda.so is of another version of hvd-kernel; install it again");
}

TEST_CASE("the plugin opens an accelerator where there is a driver") {
  fake_cuda_reset();
  const auto meshes = make_local_meshes(1, {});
  CpuBackend cpu(*meshes[0]);
  AcceleratorOptions options;
  options.driver = HVD_FAKE_CUDA;
  Status why;
  const std::unique_ptr<Accelerator> opened(
      plugins()(kAcceleratorVersion, *meshes[0], cpu, options, why));
  REQUIRE(opened != nullptr);
  CHECK(why.message == "");
  CHECK(opened->record(0, nullptr).is_ok());
}

}  // namespace
}  // namespace hvd::cuda
