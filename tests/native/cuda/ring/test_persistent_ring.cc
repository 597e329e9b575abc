// The persistent algorithm of the ring, with the bytes of CpuBackend, beside and behind the others.
#include <doctest/doctest.h>

#include <thread>

#include "base/deadline.h"
#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;

// A device each, or threads on one device with room for all.
const std::vector<RingSetup> kSetups{{2, 2, 8192, false, nullptr, 4, "persistent"},
                                     {3, 3, 8192, false, nullptr, 3, "persistent"},
                                     {4, 1, 8192, false, nullptr, 8, "persistent"}};

std::string algorithm_name(const DeviceBackend& ring) { return ring.last_algorithm(); }

}  // namespace

TEST_CASE("persistent ring: sums of floats go by it, with the host's bytes, the rest in slices") {
  for (const RingSetup& setup : kSetups) {
    CAPTURE(setup.size);
    on_rings(setup, [&](Rank& rank) {
      const Group group = everybody(setup.size, rank.number());
      const auto ring = rank.ring(group);
      CHECK(ring->algorithms() == 1);
      for (const Dtype dtype :
           {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64}) {
        const Reduction sum{dtype, ReduceOp::kSum, {}};
        const Reduction average{dtype, ReduceOp::kAverage, {0.3, 1.7, 1.0 * setup.size}};
        check_allreduce(rank, *ring, group, {sum, {0, 1, 301, 5}, false});
        CHECK(algorithm_name(*ring) == "CUDA_RING");
        check_allreduce(rank, *ring, group, {average, {20011}, true});
        check_allreduce(rank, *ring, group, {{dtype, ReduceOp::kMax, {}}, {301}, true});
        CHECK(algorithm_name(*ring) == "CUDA_SLICES");
        check_broadcast(rank, *ring, group, 1, {9000, 3}, true);
      }
      check_allreduce(rank, *ring, group, {{Dtype::kInt32, ReduceOp::kSum, {}}, {301}, true});
      CHECK(algorithm_name(*ring) == "CUDA_SLICES");
      REQUIRE(ring->finalize().message == "");
      rank.synchronize();
    });
  }
}

TEST_CASE(
    "persistent ring: where both are possible, only tensors that are worth a launch take it") {
  on_rings({2, 2, 65536, false, nullptr, 4, "auto"}, [](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto ring = rank.ring(group);
    const Reduction sum{Dtype::kFloat64, ReduceOp::kSum, {}};
    constexpr std::size_t kEnough = (std::size_t{1} << 20U) / sizeof(double);
    REQUIRE(ring->algorithms() == 2);
    check_allreduce(rank, *ring, group, {sum, {kEnough}, true});
    CHECK(algorithm_name(*ring) == "CUDA_SLICES");  // until a self-test has found what is faster
    ring->take(1);
    check_allreduce(rank, *ring, group, {sum, {kEnough}, true});
    CHECK(algorithm_name(*ring) == "CUDA_RING");
    check_allreduce(rank, *ring, group, {sum, {kEnough, 1}, true});
    CHECK(algorithm_name(*ring) == "CUDA_SLICES");
    ring->set_self_test(1);  // what is tried is what it is called, small as it may be
    check_allreduce(rank, *ring, group, {sum, {1}, true});
    CHECK(algorithm_name(*ring) == "CUDA_RING");
    ring->set_self_test(0);
    check_allreduce(rank, *ring, group, {sum, {1}, true});
    CHECK(algorithm_name(*ring) == "CUDA_SLICES");
    REQUIRE(ring->finalize().message == "");
    rank.synchronize();
  });
}

TEST_CASE("persistent ring: without memory on one rank all use slices, or fail alike") {
  for (const char* const algorithm : {"auto", "persistent"}) {
    CAPTURE(algorithm);
    on_rings({3, 3, 8192, false, nullptr, 4, algorithm}, [&](Rank& rank) {
      const Group group = everybody(3, rank.number());
      char word = 0;
      if (rank.number() == 1) fake_cuda_fail("cuIpcGetMemHandle", 4, CUDA_ERROR_OUT_OF_MEMORY);
      REQUIRE(rank.cpu().broadcast(group, {{&word, &word, 1}}, 1).is_ok());
      auto made = make_ring_backend(rank.bootstrap(group));
      if (algorithm == std::string("auto")) {
        REQUIRE(made.status().message == "");
        CHECK(made.value()->algorithms() == 1);
        check_allreduce(rank, *made.value(), group,
                        {{Dtype::kFloat32, ReduceOp::kSum, {}}, {500}, true});
        CHECK(algorithm_name(*made.value()) == "CUDA_SLICES");
        REQUIRE(made.value()->finalize().message == "");
        rank.synchronize();
      } else {
        CHECK(made.status().code == Code::kUnavailable);
      }
    });
  }
}

// As in test_abandon.cc: the device's later writes are no result, and a race.
#ifndef __SANITIZE_THREAD__
TEST_CASE(
    "persistent ring: kernels that wait for a rank that never comes end when they are let go") {
  for (const int failing : {0, 1, 2}) {
    CAPTURE(failing);
    on_rings({3, 3, 8192, false, nullptr, 4, "persistent"}, [&](Rank& rank) {
      const Group group = everybody(3, rank.number());
      const auto ring = rank.ring(group);
      const OnDevice tensor(rank, Bytes(40000));
      const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
      check_allreduce(rank, *ring, group, {sum, {1000}, true});
      if (rank.number() != failing) {
        for (int turn = 0; turn < 3; ++turn)
          REQUIRE(ring->allreduce(group, {{tensor.data(), tensor.data(), 10000}}, sum).is_ok());
        REQUIRE(ring->broadcast(group, {{tensor.data(), tensor.data(), 9000}}, 0).is_ok());
      }
      const Deadline deadline = Deadline::after_seconds(50);
      for (;;) {
        const Result<bool> idle = rank.device().idle();
        REQUIRE(idle.status().message == "");
        if (idle.value()) break;
        REQUIRE(ring->abort_waits().message == "");
        REQUIRE(!deadline.expired());
        std::this_thread::yield();
      }
    });
  }
}
#endif

}  // namespace hvd::cuda::test
