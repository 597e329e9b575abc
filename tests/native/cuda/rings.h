// Ranks as threads, each with a device of the fake driver (several may have the same one), and the
// ring between them.
#pragma once

#include <cuda.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "collective/clusters.h"
#include "collective/oracle.h"
#include "cuda/ring/ring_backend.h"
#include "fake_cuda/fake_cuda.h"

namespace hvd::cuda::test {

using hvd::test::Bytes;

struct RingSetup {
  int size = 2;
  int devices = 1;  // rank r has number r mod devices
  std::size_t arena_bytes = 4096;
  bool processes = false;          // else threads of this one
  const Driver* driver = nullptr;  // null: the fake as it is
  unsigned multiprocessors = 0;    // 0: too few for a persistent ring
  const char* algorithm = "auto";
};

inline const Driver& fake_driver() {
  const Result<const Driver*> driver = load_driver(HVD_FAKE_CUDA);
  REQUIRE(driver.status().message == "");
  return *driver.value();
}

// One rank.
class Rank {
 public:
  Rank(const RingSetup& setup, int number, Mesh& mesh)
      : setup_(setup), number_(number), mesh_(mesh), cpu_(mesh) {
    const Driver& driver = setup.driver == nullptr ? fake_driver() : *setup.driver;
    auto device = Device::open(driver, number % setup.devices, number);
    REQUIRE(device.status().message == "");
    device_ = device.take();
  }

  int number() const { return number_; }
  Device& device() { return *device_; }
  CpuBackend& cpu() { return cpu_; }

  BootstrapGroup bootstrap(const Group& group) {
    BootstrapGroup bootstrap{device_, &mesh_, &cpu_, group, {}};
    for (const int rank : group.ranks) {
      PeerInfo info;
      info.rank = rank;
      info.process = setup_.processes ? static_cast<std::uint64_t>(rank) + 1 : 1;
      info.arena_bytes = setup_.arena_bytes;
      info.uuid.back() = static_cast<unsigned char>(rank % setup_.devices);
      info.multiprocessors = setup_.multiprocessors;
      std::strncpy(info.ring.data(), setup_.algorithm, info.ring.size() - 1);
      bootstrap.members.push_back(info);
    }
    return bootstrap;
  }

  std::unique_ptr<DeviceBackend> ring(const Group& group) {
    auto made = make_ring_backend(bootstrap(group));
    REQUIRE(made.status().message == "");
    return made.take();
  }

  void synchronize() {
    const Current current(*device_);
    const Status status = device_->driver().check(
        device_->driver().cuStreamSynchronize(device_->stream()), "cuStreamSynchronize");
    REQUIRE(status.message == "");
  }

 private:
  const RingSetup& setup_;
  int number_;
  Mesh& mesh_;
  CpuBackend cpu_;
  std::shared_ptr<Device> device_;
};

// Device memory with bytes of the host in it.
class OnDevice {
 public:
  OnDevice(Rank& rank, const Bytes& bytes) : rank_(rank), bytes_(bytes.size()) {
    auto memory = rank.device().allocate(bytes.size() + 1);
    REQUIRE(memory.status().message == "");
    memory_ = memory.take();
    copy(data(), bytes.data());
    rank.synchronize();
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

  // What is there when the stream has come so far.
  Bytes read() const {
    Bytes bytes(bytes_);
    copy(bytes.data(), data());
    rank_.synchronize();
    return bytes;
  }

 private:
  void copy(void* to, const void* from) const {
    if (bytes_ == 0) return;
    const Current current(rank_.device());
    const CUresult result = rank_.device().driver().cuMemcpyAsync(
        reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes_,
        rank_.device().stream());
    REQUIRE(result == CUDA_SUCCESS);
  }

  Rank& rank_;
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

inline FakeCounts counts() {
  FakeCounts now{};
  fake_cuda_counts(&now);
  return now;
}

inline void check_nothing_left() {
  const FakeCounts now = counts();
  CHECK(now.allocations == 0);
  CHECK(now.mappings == 0);
  CHECK(now.pinned == 0);
  CHECK(now.streams == 0);
  CHECK(now.events == 0);
  CHECK(now.modules == 0);
  CHECK(now.contexts == 0);
}

// body(rank) on a thread each. When all are through, nothing is left on the devices.
inline void on_rings(const RingSetup& setup, const std::function<void(Rank&)>& body) {
  fake_cuda_reset();
  fake_cuda_set_devices(setup.devices);
  const auto meshes = make_local_meshes(setup.size, {});
  hvd::test::run_ranks(setup.size, [&](int number) {
    Rank rank(setup, number, *meshes[static_cast<std::size_t>(number)]);
    body(rank);
  });
  check_nothing_left();
}

}  // namespace hvd::cuda::test
