// One device: what opening it gives and leaves, the current context, events, memory in stream
// order.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "cuda/device/device.h"
#include "cuda/rings.h"

namespace hvd::cuda {
namespace {

using test::check_nothing_left;
using test::counts;
using test::fake_driver;

std::shared_ptr<Device> opened(int number = 0, int rank = 0) {
  auto device = Device::open(fake_driver(), number, rank);
  REQUIRE(device.status().message == "");
  return device.take();
}

// A stream as a frontend has it.
class Theirs {
 public:
  explicit Theirs(Device& device) : device_(device) {
    const Current current(device);
    REQUIRE(device.driver().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0) ==
            CUDA_SUCCESS);
  }
  ~Theirs() {
    const Current current(device_);
    device_.driver().cuStreamDestroy(stream_);
  }
  CUstream get() const { return stream_; }

 private:
  Device& device_;
  CUstream stream_ = nullptr;
};

void synchronize(Device& device, CUstream stream) {
  const Current current(device);
  REQUIRE(device.driver().cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

bool query_now(Device& device, const Device::Event& event) {
  const Result<bool> reached = device.query(event.get());
  REQUIRE(reached.status().message == "");
  return reached.value();
}

TEST_CASE("a device is opened with its name, and nothing of it is left") {
  fake_cuda_reset();
  fake_cuda_set_devices(2);
  {
    const auto device = opened(1, 3);
    CHECK(device->number() == 1);
    CHECK(device->site().name == "rank 3, device 1 (Fake GPU)");
    CHECK(device->uuid()[15] == 1);
    CHECK(device->has_word_operations());
    CHECK(device->reachable().size() == 2);
    synchronize(*device, device->stream());
    CHECK(device->idle().value());
    CHECK(counts().contexts == 1);
    CHECK(counts().streams == 2);
  }
  check_nothing_left();
}

TEST_CASE("the fake driver's time slices: a stream stands still until its process's turn, or MPS") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const Theirs stream(*device);
    for (const bool mps : {false, true}) {
      fake_cuda_time_slices(-1, 2);  // never
      Result<Device::Event> event = device->recorded(stream.get());
      REQUIRE(event.status().message == "");
      CHECK_FALSE(query_now(*device, event.value()));
      mps ? fake_cuda_set_mps(1) : fake_cuda_time_slices(1, 2);
      synchronize(*device, stream.get());
      CHECK(query_now(*device, event.value()));
    }
    fake_cuda_set_mps(0);
    fake_cuda_time_slices(0, 1);
  }
  check_nothing_left();
}

TEST_CASE("a missing device is named, with the number of devices") {
  fake_cuda_reset();
  for (const int number : {-1, 1}) {
    const auto device = Device::open(fake_driver(), number, 5);
    REQUIRE(!device.is_ok());
    CHECK(device.status().code == Code::kInvalidArgument);
    CHECK(device.status().rank == 5);
    CHECK(device.status().message == "rank 5: there is no device " + std::to_string(number) +
                                         ", this process sees 1 (CUDA_VISIBLE_DEVICES)");
  }
  check_nothing_left();
}

TEST_CASE("whatever fails while a device is opened: the device is named and nothing is left") {
  for (const char* const function :
       {"cuDeviceGet", "cuDeviceGetUuid", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent",
        "cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority", "cuModuleLoadData",
        "cuModuleGetFunction"}) {
    CAPTURE(function);
    fake_cuda_reset();
    fake_cuda_fail(function, 1, CUDA_ERROR_UNKNOWN);
    const auto device = Device::open(fake_driver(), 0, 2);
    REQUIRE(!device.is_ok());
    CHECK(device.status().rank == 2);
    CHECK(device.status().message.find("rank 2, device 0") == 0);
    CHECK(device.status().message.find("CUDA_ERROR_UNKNOWN (unknown error)") != std::string::npos);
    check_nothing_left();
  }
}

TEST_CASE("an unsupported device: the supported ones, and the alternative") {
  for (const CUresult error : {CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION}) {
    fake_cuda_reset();
    fake_cuda_fail("cuModuleLoadData", 1, error);
    const Status status = Device::open(fake_driver(), 0, 2).status();
    CHECK(status.message.find("rank 2, device 0") == 0);
    CHECK(status.message.find("compute capability 7.5 and later") != std::string::npos);
    CHECK(status.message.find("HVD_GPU=staged") != std::string::npos);
  }
  check_nothing_left();
}

TEST_CASE("where a graph was captured, it is idle when the streams that replay it are") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const Theirs theirs(*device);
    const auto done = device->recorded(device->stream());
    REQUIRE(device->stream_wait(theirs.get(), done.value().get()).message == "");
    fake_cuda_hold(theirs.get());
    REQUIRE(device->recorded(theirs.get()).status().message == "");
    synchronize(*device, device->stream());
    CHECK(device->idle().value());
    fake_cuda_set_capturing(device->stream(), 1);
    CHECK(device->captures(device->stream()));
    fake_cuda_set_capturing(device->stream(), 0);
    CHECK(!device->idle().value());
    fake_cuda_release(theirs.get());
    synchronize(*device, theirs.get());
    CHECK(device->idle().value());
  }
  check_nothing_left();
}

TEST_CASE("a default stream that must not be touched for a capture's sake counts as captured") {
  fake_cuda_reset();
  {
    const auto device = opened();
    fake_cuda_fail("cuStreamIsCapturing", 1, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(device->captures(nullptr));
    CHECK(!device->captures(nullptr));
  }
  check_nothing_left();
}

TEST_CASE("what other devices it reaches, and whether word operations work") {
  fake_cuda_reset();
  fake_cuda_set_devices(3);
  fake_cuda_set_reachable(0);
  fake_cuda_set_word_operations(0);
  const auto device = opened();
  CHECK(device->reachable() == std::vector<Uuid>{device->uuid()});
  CHECK(!device->has_word_operations());
}

TEST_CASE("the current context nests, and is restored") {
  fake_cuda_reset();
  fake_cuda_set_devices(2);
  const auto first = opened(0), second = opened(1);
  CHECK(fake_cuda_current_device() == -1);
  {
    const Current outer(*first);
    {
      const Current inner(*second);
      CHECK(fake_cuda_current_device() == 1);
      CHECK(current_site() == &second->site());
    }
    CHECK(fake_cuda_current_device() == 0);
    CHECK(current_site() == &first->site());
  }
  CHECK(fake_cuda_current_device() == -1);
  CHECK(current_site() == nullptr);
}

TEST_CASE("work that follows an event runs after it, and the host does not wait") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const Theirs theirs(*device);
    fake_cuda_hold(device->stream());
    auto memory = device->allocate(4);
    REQUIRE(memory.status().message == "");
    const auto word = reinterpret_cast<CUdeviceptr>(memory.value().get());
    std::uint32_t seen = 0;
    {
      const Current current(*device);
      device->driver().cuMemsetD32Async(word, 7, 1, device->stream());
    }
    const auto done = device->recorded(device->stream());
    REQUIRE(done.status().message == "");
    CHECK(!query_now(*device, done.value()));
    CHECK(!device->idle().value());
    REQUIRE(device->stream_wait(theirs.get(), done.value().get()).message == "");
    {
      const Current current(*device);
      device->driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(&seen), word, sizeof seen,
                                     theirs.get());
    }
    fake_cuda_release(device->stream());
    synchronize(*device, theirs.get());
    CHECK(seen == 7);
    CHECK(query_now(*device, done.value()));
  }
  check_nothing_left();
}

TEST_CASE("events are reused, and outlive the owner of the device") {
  fake_cuda_reset();
  {
    auto device = opened();
    const std::size_t before = fake_cuda_calls("cuEventCreate");
    for (int i = 0; i < 5; ++i) REQUIRE(device->recorded(device->stream()).is_ok());
    CHECK(fake_cuda_calls("cuEventCreate") == before + 1);
    Device::Event last = device->recorded(nullptr).take();
    device.reset();
    CHECK(counts().contexts == 1);
  }
  check_nothing_left();
}

TEST_CASE("memory is freed after the streams that used it") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const Theirs theirs(*device);
    const std::size_t before = counts().bytes;
    auto memory = device->allocate(1000);
    REQUIRE(memory.status().message == "");
    CHECK(reinterpret_cast<std::uintptr_t>(memory.value().get()) % 256 == 0);
    CHECK(counts().bytes == before + 1000);
    const auto there = device->recorded(device->stream());
    REQUIRE(device->stream_wait(theirs.get(), there.value().get()).message == "");
    fake_cuda_hold(theirs.get());
    {
      const Current current(*device);
      device->driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory.value().get()), 1, 1000,
                                       theirs.get());
    }
    memory.value().reset();
    synchronize(*device, device->stream());  // which does not wait for it
    CHECK(counts().bytes == before + 1000);
    fake_cuda_release(theirs.get());
    synchronize(*device, theirs.get());
  }
  check_nothing_left();
}

// Follows our stream, and is destroyed by its owner.
void come_and_go(Device& device) {
  const Theirs theirs(device);
  const auto there = device.recorded(device.stream());
  REQUIRE(device.stream_wait(theirs.get(), there.value().get()).message == "");
}

TEST_CASE("a stream that followed before memory was there is not touched when that goes back") {
  fake_cuda_reset();
  const std::size_t before = fake_cuda_lost_streams();
  {
    const auto device = opened();
    for (int i = 0; i < 3; ++i) {
      come_and_go(*device);
      auto memory = device->allocate(64);
      const std::size_t frees = fake_cuda_calls("cuMemFreeAsync");
      memory.value().reset();
      CHECK(fake_cuda_calls("cuMemFreeAsync") == frees + 1);
    }
    synchronize(*device, device->stream());  // on which memory goes back
    CHECK(device->idle().value());
  }
  CHECK(fake_cuda_lost_streams() == before);
  check_nothing_left();
}

TEST_CASE("more memory than there is: how much, on which device") {
  fake_cuda_reset();
  fake_cuda_set_memory(1U << 20U);
  const auto device = opened(0, 1);
  const auto memory = device->allocate(2U << 20U);
  REQUIRE(!memory.is_ok());
  CHECK(memory.status().code == Code::kUnavailable);
  CHECK(memory.status().rank == 1);
  CHECK(memory.status().message ==
        "rank 1, device 0 (Fake GPU): to allocate 2097152 bytes failed: CUDA_ERROR_OUT_OF_MEMORY "
        "(out of memory)");
  CHECK(device->allocate(1U << 10U).is_ok());
}

TEST_CASE("a step that is captured: its events have nothing to wait for, memory is left alone") {
  fake_cuda_reset();
  {
    const auto device = opened();
    const Theirs theirs(*device);
    auto memory = device->allocate(64);
    const auto there = device->recorded(device->stream());
    REQUIRE(device->stream_wait(theirs.get(), there.value().get()).message == "");
    fake_cuda_set_capturing(theirs.get(), 1);
    const auto captured = device->recorded(theirs.get());
    CHECK(query_now(*device, captured.value()));
    const std::size_t frees = fake_cuda_calls("cuMemFreeAsync");
    memory.value().reset();
    CHECK(fake_cuda_calls("cuMemFreeAsync") == frees);
    fake_cuda_set_capturing(device->stream(), 1);
    const auto refused = device->allocate(64);
    REQUIRE(!refused.is_ok());
    CHECK(refused.status().code == Code::kUnavailable);
    CHECK(!device->idle().value());
    fake_cuda_set_capturing(device->stream(), 0);
    fake_cuda_set_capturing(theirs.get(), 0);
    CHECK(device->allocate(64).is_ok());
    CHECK(fake_cuda_calls("cuMemFreeAsync") > frees);
  }
  check_nothing_left();
}

TEST_CASE("a lost device is reported, without waiting") {
  fake_cuda_reset();
  {
    const auto device = opened(0, 4);
    fake_cuda_hold(device->stream());
    const auto done = device->recorded(device->stream());
    fake_cuda_lose(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    for (const Status& status : {device->query(done.value().get()).status(),
                                 device->idle().status(), device->allocate(1).status()}) {
      CHECK(status.rank == 4);
      CHECK(status.message.find("CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was "
                                "encountered)") != std::string::npos);
    }
    fake_cuda_release(device->stream());
  }
  check_nothing_left();
  fake_cuda_reset();
}

}  // namespace
}  // namespace hvd::cuda
