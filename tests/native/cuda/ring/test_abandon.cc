// A rank that never comes, or fails in the middle: the others' devices wait for nobody, and nothing
// is left. What the device does then is nobody's result.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "base/deadline.h"
#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

constexpr double kPatience = 50;  // seconds; on an idle machine it takes milliseconds

bool idle(Rank& rank) {
  const Result<bool> idle = rank.device().idle();
  REQUIRE(idle.status().message == "");
  return idle.value();
}

// Behind this, all have read what they have got so far: letting go spoils it.
void init_backend(Rank& rank, const Group& group) {
  char word = 0;
  for (int root = 0; root < group.size(); ++root)
    REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, root).is_ok());
}

// As the accelerator does it.
void abandon(Rank& rank, const std::vector<DeviceBackend*>& backends) {
  const Deadline deadline = Deadline::after_seconds(kPatience);
  while (!idle(rank)) {
    for (DeviceBackend* const backend : backends) REQUIRE(backend->abort_waits().message == "");
    REQUIRE(!deadline.expired());
    std::this_thread::yield();
  }
}

// Steps of streams, of all ranks.
std::size_t given() {
  return fake_cuda_calls("cuLaunchKernel") + fake_cuda_calls("cuStreamBatchMemOp");
}

const Reduction kSum{Dtype::kFloat32, ReduceOp::kSum, {}};

// Released streams read and write without waiting for each other: intended races.
#ifdef __SANITIZE_THREAD__
constexpr bool kRacesAreErrors = true;
#else
constexpr bool kRacesAreErrors = false;
#endif

}  // namespace

TEST_CASE("abandon: one rank is missing, the others have queued operations of all kinds" *
          doctest::skip(kRacesAreErrors)) {
  for (const int failing : {0, 1, 2}) {
    CAPTURE(failing);
    on_rings({3, 2, 65536}, [&](Rank& rank) {
      const Group group = everybody(3, rank.number());
      const auto ring = rank.ring(group);
      const Group pair = hvd::test::group_of({0, 1}, rank.number(), 1);
      const auto second = rank.number() < 2 ? rank.ring(pair) : nullptr;
      const OnDevice tensor(rank, Bytes(9000)), other(rank, Bytes(9000));
      check_allreduce(rank, *ring, group, {kSum, {1000}, true});
      init_backend(rank, group);
      if (rank.number() != failing) {
        for (int turn = 0; turn < 8; ++turn) {
          REQUIRE(ring->allreduce(group, {{tensor.data(), other.data(), 2250}}, kSum).is_ok());
          REQUIRE(ring->broadcast(group, {{other.data(), other.data(), 9000}}, turn % 3).is_ok());
          if (second != nullptr)
            REQUIRE(second->allreduce(pair, {{tensor.data(), tensor.data(), 2250}}, kSum).is_ok());
        }
        CHECK(!idle(rank));  // it waits for the failing one, forever
      }
      std::vector<DeviceBackend*> backends{ring.get()};
      if (second != nullptr) backends.push_back(second.get());
      abandon(rank, backends);
    });
  }
}

TEST_CASE("abandon: a rank whose kernel does not start reports it; the others are released" *
          doctest::skip(kRacesAreErrors)) {
  std::atomic<int> failed{0};
  on_rings({3, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto ring = rank.ring(group);
    const OnDevice tensor(rank, Bytes(9000));
    check_allreduce(rank, *ring, group, {kSum, {1000}, true});
    init_backend(rank, group);
    if (rank.number() == 1) fake_cuda_fail("cuLaunchKernel", 9, CUDA_ERROR_LAUNCH_FAILED);
    const Status status = ring->allreduce(group, {{tensor.data(), tensor.data(), 2250}}, kSum);
    if (!status) {
      ++failed;
      CHECK(status.message.find("rank " + std::to_string(rank.number())) == 0);
      CHECK(status.message.find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos);
    }
    abandon(rank, {ring.get()});
  });
  CHECK(failed == 1);
}

TEST_CASE(
    "abandon: who is far ahead of a device waits before the driver blocks; an abort ends that" *
    doctest::skip(kRacesAreErrors)) {
  on_rings({2, 2, 2048}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto ring = rank.ring(group);
    const OnDevice tensor(rank, Bytes(9000));
    const std::size_t before = given();
    init_backend(rank, group);
    if (rank.number() == 1) {
      const Deadline deadline = Deadline::after_seconds(kPatience);
      while (given() - before < InFlightLimiter::kWindow * InFlightLimiter::kWindows) {
        REQUIRE(!deadline.expired());
        std::this_thread::yield();
      }
      rank.bootstrap(group).mesh->raise_everywhere(
          Status::make(Code::kRankDied, "rank 1 died", "test"));
    } else {
      Status status = Status::ok();
      while (status) status = ring->allreduce(group, {{tensor.data(), tensor.data(), 2250}}, kSum);
      CHECK(status.message == "rank 1 died");
      CHECK(given() - before <= InFlightLimiter::kWindow * (InFlightLimiter::kWindows + 1));
    }
    abandon(rank, {ring.get()});
  });
}

TEST_CASE("finalize: a finished rank waits until the others have read its part") {
  on_rings({2, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto ring = rank.ring(group);
    const OnDevice tensor(rank, Bytes(100, static_cast<std::byte>(rank.number() + 1)));
    char word = 0;
    if (rank.number() == 0) {
      REQUIRE(ring->broadcast(group, {{tensor.data(), tensor.data(), 100}}, 0).is_ok());
      rank.synchronize();  // the root needs nobody
      REQUIRE(ring->finalize().message == "");
      CHECK(!idle(rank));
      REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, 0).is_ok());
    } else {
      REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, 0).is_ok());
      REQUIRE(ring->broadcast(group, {{tensor.data(), tensor.data(), 100}}, 0).is_ok());
      REQUIRE(ring->finalize().message == "");
    }
    rank.synchronize();
    CHECK(tensor.read() == Bytes(100, std::byte{1}));
  });
}

TEST_CASE("arena: no memory on one rank is an error on all, and nothing is left") {
  on_rings({3, 1, 4096}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    char word = 0;
    if (rank.number() == 1) fake_cuda_fail("cuIpcGetMemHandle", 1, CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, 1).is_ok());
    const auto made = make_ring_backend(rank.bootstrap(group));
    CHECK(!made);
    CHECK(made.status().code == Code::kUnavailable);
  });
}

TEST_CASE("arena: too small for its ranks is an error with the remedy") {
  on_rings({3, 1, 200}, [&](Rank& rank) {
    const auto made = make_ring_backend(rank.bootstrap(everybody(3, rank.number())));
    CHECK(made.status().code == Code::kInvalidArgument);
    CHECK(made.status().message.find("HOROVOD_GPU_ARENA_BYTES") != std::string::npos);
  });
}

TEST_CASE("arena: words and halves lie apart, and the smallest arenas are whole rounds") {
  for (const std::size_t members : {2, 3, 11, 64}) {
    std::size_t before = 0;
    for (const std::size_t bytes : {2000, 4096, 9999, 1 << 20}) {
      const ArenaShape shape(bytes, members);
      CHECK(shape.word(Phase::kFreed, 1, members - 1) + 4 <= shape.half(0));
      CHECK(shape.half(1) == shape.half(0) + shape.half_bytes());
      CHECK((shape.half_bytes() == 0 || shape.half(1) + shape.half_bytes() <= bytes));
      CHECK(shape.half(0) % 256 == 0);
      CHECK(shape.half(1) % 256 == 0);
      CHECK(shape.room() % 16 == 0);
      CHECK(shape.room() * members <= shape.half_bytes());
      CHECK(shape.half_bytes() >= before);
      before = shape.half_bytes();
    }
  }
}

}  // namespace hvd::cuda::test
