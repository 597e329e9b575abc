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
class Seat {
 public:
  Seat(int rank, Mesh& mesh, const std::string& operations) : rank_(rank), mesh_(mesh), cpu_(mesh) {
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

void with_seats(int size, int devices, const std::function<void(Seat&)>& body,
                const std::string& operations = "auto") {
  fake_cuda_reset();
  fake_cuda_set_devices(devices);
  const auto meshes = make_local_meshes(size, {});
  hvd::test::run_ranks(size, [&](int rank) {
    Seat seat(rank, *meshes[static_cast<std::size_t>(rank)], operations);
    body(seat);
  });
  check_nothing_left();
}

// Memory of a device with these numbers in it, on the frontend's stream.
class Tensor {
 public:
  Tensor(Seat& seat, int number, const Numbers& numbers)
      : count_(numbers.size()), device_(seat.frontend(number)) {
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
void operate(Seat& seat, int device, const Group& group,
             const std::function<Status(Backend&)>& operation) {
  auto ready = seat.accelerator().record(device, seat.stream(device));
  REQUIRE(ready.status().message == "");
  const auto backend = seat.accelerator().begin(device, group, 64, {ready.value()});
  REQUIRE(backend.status().message == "");
  REQUIRE(operation(*backend.value()).message == "");
  auto done = seat.accelerator().end();
  REQUIRE(done.status().message == "");
  REQUIRE(done.value()->stream_wait(seat.stream(device)).message == "");
}

void allreduce(Seat& seat, int device, const Group& group, const Tensor& tensor) {
  operate(seat, device, group,
          [&](Backend& backend) { return backend.allreduce(group, {tensor.operand()}, sum()); });
}

// The end of an engine that nobody aborts (engine.cc). Who leaves without it takes whatever data
// there is, and so do its peers.
void await_peace(Seat& seat) {
  while (!seat.accelerator().idle()) std::this_thread::yield();
}

Numbers numbers_of(int rank) { return {rank + 1, 10 * (rank + 1), -rank, 7}; }

TEST_CASE("an operation between a ready event and a done event, on every way") {
  for (const char* const operations : {"ring", "staged"}) {
    CAPTURE(operations);
    with_seats(
        3, 1,
        [](Seat& seat) {
          const Tensor tensor(seat, 0, numbers_of(seat.rank()));
          allreduce(seat, 0, everybody(3, seat.rank()), tensor);
          CHECK(tensor.read() == Numbers{6, 60, -3, 21});
          allreduce(seat, 0, everybody(3, seat.rank()), tensor);
          CHECK(tensor.read() == Numbers{18, 180, -9, 63});
        },
        operations);
  }
}

TEST_CASE("teams meet each for itself, once") {
  with_seats(3, 1, [](Seat& seat) {
    const int rank = seat.rank();
    const Tensor tensor(seat, 0, numbers_of(rank));
    for (int round = 0; round < 2; ++round) {
      allreduce(seat, 0, everybody(3, rank), tensor);
      if (rank != 1) allreduce(seat, 0, group_of({0, 2}, rank, 1), tensor);
    }
    // 3 ranks: 6; of 0 and 2: 12; then 12 + 6 + 12 = 30, 60.
    CHECK(tensor.read().front() == (rank == 1 ? 30 : 60));
  });
}

TEST_CASE("the host does not wait: the operation comes behind the ready event") {
  with_seats(2, 1, [](Seat& seat) {
    const Tensor tensor(seat, 0, numbers_of(seat.rank()));
    allreduce(seat, 0, everybody(2, seat.rank()), tensor);  // they have met
    const auto device = Device::open(fake_driver(), 0, seat.rank());
    CUstream const late = device.value()->stream();
    fake_cuda_hold(late);
    auto ready = seat.accelerator().record(0, late);
    const Group group = everybody(2, seat.rank());
    const auto backend = seat.accelerator().begin(0, group, 64, {ready.value()});
    REQUIRE(backend.value()->allreduce(group, {tensor.operand()}, sum()).message == "");
    auto done = seat.accelerator().end();
    CHECK(!ready.value()->query().value());
    CHECK(!done.value()->query().value());
    CHECK(!seat.accelerator().idle());
    fake_cuda_release(late);
    REQUIRE(done.value()->stream_wait(seat.stream(0)).message == "");
    CHECK(tensor.read() == Numbers{6, 60, -2, 28});
    CHECK(done.value()->query().value());
  });
}

TEST_CASE("how long operations take, and are waited for") {
  constexpr auto kLate = std::chrono::milliseconds(5);
  with_seats(2, 2, [&](Seat& seat) {
    const Tensor tensor(seat, 0, numbers_of(seat.rank()));
    allreduce(seat, 0, everybody(2, seat.rank()), tensor);  // they have met
    tensor.read();
    const DeviceTimes before = seat.accelerator().times();
    CHECK(before.busy_ns > 0);
    if (seat.rank() == 1) std::this_thread::sleep_for(kLate);  // what is measured
    allreduce(seat, 0, everybody(2, seat.rank()), tensor);
    tensor.read();
    const DeviceTimes after = seat.accelerator().times();
    CHECK(after.busy_ns > before.busy_ns);
    CHECK(after.exposed_ns >= before.exposed_ns);
    const Tensor away(seat, 1, numbers_of(seat.rank()));
    allreduce(seat, 1, everybody(2, seat.rank()), away);  // ferried: not timed
    CHECK(away.read() == Numbers{3, 30, -1, 14});
    CHECK(seat.accelerator().times().busy_ns == after.busy_ns);
    await_peace(seat);
  });
}

TEST_CASE("events have spans by the host's clock where operations are measured") {
  with_seats(1, 1, [](Seat& seat) {
    const Group group = everybody(1, 0);
    const Tensor tensor(seat, 0, numbers_of(0));
    const auto slow = Device::open(fake_driver(), 0, 0);
    const auto operation = [&](CUstream inputs) {
      auto ready = seat.accelerator().record(0, inputs);
      const auto backend = seat.accelerator().begin(0, group, 16, {ready.value()});
      REQUIRE(backend.value()->allreduce(group, {tensor.operand()}, sum()).message == "");
      return seat.accelerator().end().take();
    };
    const DeviceEventPtr unmeasured = operation(seat.stream(0));
    seat.accelerator().measure(true);
    const std::int64_t before = now_ns();
    fake_cuda_hold(slow.value()->stream());
    const DeviceEventPtr measured = operation(slow.value()->stream());
    CHECK_FALSE(measured->span().has_value());  // it is not there yet
    fake_cuda_release(slow.value()->stream());
    REQUIRE(measured->stream_wait(seat.stream(0)).message == "");
    tensor.read();
    while (measured->span_comes()) std::this_thread::yield();
    CHECK_FALSE(unmeasured->span().has_value());
    const auto span = measured->span();
    REQUIRE(span.has_value());
    CHECK(span->queued_ns >= before);
    CHECK(span->begun_ns >= span->queued_ns);
    CHECK(span->done_ns >= span->begun_ns);
  });
}

TEST_CASE("devices in turn: one rank uses another than its team's home") {
  with_seats(2, 2, [](Seat& seat) {
    const int rank = seat.rank();
    const Group group = everybody(2, rank);
    for (const int device : {0, 1, 0, 1}) {
      const int mine = rank == 0 ? device : 0;
      const Tensor tensor(seat, mine, numbers_of(rank));
      allreduce(seat, mine, group, tensor);
      CHECK(tensor.read() == Numbers{3, 30, -1, 14});
    }
  });
}

TEST_CASE("every operation away from home") {
  with_seats(2, 2, [](Seat& seat) {
    const int rank = seat.rank();
    const Group group = everybody(2, rank);
    const Tensor at_home(seat, 0, {1});
    allreduce(seat, 0, group, at_home);

    const Tensor in(seat, 1, numbers_of(rank)), out(seat, 1, Numbers(8, 0));
    auto* const to = static_cast<std::byte*>(out.data());
    const auto* const from = static_cast<const std::byte*>(in.data());
    operate(seat, 1, group, [&](Backend& backend) {
      return backend.allgather(group, {{from, {to, to + 16}, {16, 16}}});
    });
    CHECK(out.read() == Numbers{1, 10, 0, 7, 2, 20, -1, 7});
    operate(seat, 1, group, [&](Backend& backend) {
      return backend.alltoall(group, {{from, from + 8}, {8, 8}, {to, to + 8}, {8, 8}});
    });
    CHECK(out.read() ==
          (rank == 0 ? Numbers{1, 10, 2, 20, 2, 20, -1, 7} : Numbers{0, 7, -1, 7, 2, 20, -1, 7}));
    operate(seat, 1, group, [&](Backend& backend) {
      return backend.reducescatter(group, {{from, to, {0, 3, 4}}}, sum());
    });
    CHECK(out.read().front() == (rank == 0 ? 3 : 14));
    operate(seat, 1, group, [&](Backend& backend) {
      return backend.broadcast(group, {{rank == 1 ? from : nullptr, to, 16}}, 1);
    });
    const Numbers sent = out.read();
    CHECK(Numbers(sent.begin(), sent.begin() + 4) == numbers_of(1));
  });
}

TEST_CASE("a rank that has joined stands in on any device") {
  with_seats(2, 1, [](Seat& seat) {
    const Group group = everybody(2, seat.rank());
    if (seat.rank() == 0) {
      const Tensor tensor(seat, 0, numbers_of(0));
      allreduce(seat, 0, group, tensor);
      CHECK(tensor.read() == numbers_of(0));
      return;
    }
    CudaAccelerator& accelerator = seat.accelerator();
    const auto backend = accelerator.begin(kAnyDevice, group, 64, {});
    REQUIRE(backend.status().message == "");
    auto memory = accelerator.allocate(kAnyDevice, 16);
    REQUIRE(memory.status().message == "");
    void* const data = memory.value().get();
    REQUIRE(accelerator.fill_identity(Dtype::kInt32, ReduceOp::kSum, data, 4).message == "");
    REQUIRE(backend.value()->allreduce(group, {{data, data, 4}}, sum()).message == "");
    REQUIRE(accelerator.end().is_ok());
    await_peace(seat);
  });
}

TEST_CASE("memory that the ranks share: where they have met, and drained before it goes") {
  with_seats(2, 2, [](Seat& seat) {
    CudaAccelerator& accelerator = seat.accelerator();
    const Group group = everybody(2, seat.rank());
    auto region = accelerator.share(0, group, 4 * sizeof(std::int32_t));
    REQUIRE(region.status().message == "");
    CHECK(region.value().offsets[static_cast<std::size_t>(seat.rank())] == 0);
    const auto elsewhere = accelerator.share(seat.rank(), group, 16);  // rank 1 on another device
    CHECK(elsewhere.status().code == Code::kInvalidArgument);
    CHECK(elsewhere.status().rank == 1);
    void* const data = region.value().mine.get();
    auto* const numbers = static_cast<float*>(data);
    std::fill_n(numbers, 4, 1.0F + static_cast<float>(seat.rank()));  // the fake's is the host's
    Reduction reduction = sum();
    reduction.dtype = Dtype::kFloat32;
    operate(seat, 0, group, [&](Backend& backend) {
      return backend.allreduce_shared(group, {{data, data, 4}}, region.value().offsets, reduction);
    });
    REQUIRE(accelerator.drain().message == "");
    CHECK(numbers[0] == 3);
    CHECK(numbers[3] == 3);
    await_peace(seat);
  });
}

TEST_CASE("memory that the ranks share stays as long as a queue uses it, then nothing is left") {
  with_seats(2, 1, [](Seat& seat) {
    CudaAccelerator& accelerator = seat.accelerator();
    const Group group = everybody(2, seat.rank());
    auto region = accelerator.share(0, group, 1 << 16);
    REQUIRE(region.status().message == "");
    if (seat.rank() == 1) return;  // and never comes
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
    seat.leave();
    CHECK(done.value()->query().value());
  });
}

TEST_CASE("no memory is shared where the way is not the ring") {
  with_seats(
      2, 1,
      [](Seat& seat) {
        const auto region = seat.accelerator().share(0, everybody(2, seat.rank()), 64);
        CHECK(region.status().code == Code::kUnavailable);
        CHECK(region.status().message ==
              "this device backend cannot share memory between ranks, the ring can");
      },
      "staged");
}

TEST_CASE("a device that is not there is named by whatever asks for it") {
  with_seats(1, 1, [](Seat& seat) {
    CHECK(seat.accelerator().record(3, nullptr).status().code == Code::kInvalidArgument);
    CHECK(seat.accelerator().allocate(3, 1).status().code == Code::kInvalidArgument);
    CHECK(seat.accelerator().begin(3, everybody(1, 0), 4, {}).status().message ==
          "rank 0: there is no device 3, this process sees 1 (CUDA_VISIBLE_DEVICES)");
  });
}

TEST_CASE("peace: idle when all have done with each other's memory, then nothing is left") {
  with_seats(3, 1, [](Seat& seat) {
    const Tensor tensor(seat, 0, numbers_of(seat.rank()));
    allreduce(seat, 0, everybody(3, seat.rank()), tensor);
    await_peace(seat);
    seat.accelerator().abandon();
    seat.leave();
    CHECK(tensor.read() == Numbers{6, 60, -3, 21});
  });
}

void wait_for_one_that_never_comes() {
  with_seats(2, 1, [](Seat& seat) {
    const Group group = everybody(2, seat.rank());
    const Tensor tensor(seat, 0, numbers_of(seat.rank()));
    allreduce(seat, 0, group, tensor);
    tensor.read();
    if (seat.rank() == 1) return;
    auto ready = seat.accelerator().record(0, seat.stream(0));
    const auto backend = seat.accelerator().begin(0, group, 64, {ready.value()});
    REQUIRE(backend.status().message == "");
    REQUIRE(backend.value()->allreduce(group, {tensor.operand()}, sum()).message == "");
    const auto done = seat.accelerator().end();
    CHECK(!done.value()->query().value());
    seat.accelerator().abandon();
    REQUIRE(done.value()->stream_wait(seat.stream(0)).message == "");
    tensor.read();  // the stream goes on
    CHECK(done.value()->query().value());
    CHECK(backend.value()->allreduce(group, {tensor.operand()}, sum()).code == Code::kShutdown);
  });
}

TEST_CASE("a rank that never comes: the device is let go, and the engine's end takes no call") {
  wait_for_one_that_never_comes();
}

TEST_CASE("A20 an exception on the way lets the device go all the same") {
  arm_failpoints("cuda.end:throw@1");
  wait_for_one_that_never_comes();
  CHECK(failpoint_passages("cuda.end") > 1);
  arm_failpoints("");
}

TEST_CASE("the event of what becomes part of a graph says so") {
  with_seats(1, 1, [](Seat& seat) {
    const Group group = everybody(1, seat.rank());
    for (const bool captured : {false, true}) {
      if (captured) fake_cuda_fail("cuStreamIsCapturing", 0, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      REQUIRE(seat.accelerator().begin(0, group, 64, {}).status().message == "");
      const auto done = seat.accelerator().end();
      fake_cuda_fail_nothing();
      REQUIRE(done.status().message == "");
      CHECK(done.value()->captured() == captured);
    }
  });
}

TEST_CASE("events and memory outlive the accelerator") {
  with_seats(1, 1, [](Seat& seat) {
    const auto event = seat.accelerator().record(0, nullptr);
    const auto memory = seat.accelerator().allocate(0, 64);
    seat.leave();
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

TEST_CASE("the plugin says why there is no accelerator") {
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
