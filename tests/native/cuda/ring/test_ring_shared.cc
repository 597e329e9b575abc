// Tensors in memory that the ranks share: reduced where they lie, to the bytes of
// CpuBackend, and given back.
#include <doctest/doctest.h>

#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;
using hvd::test::group_of;
using hvd::test::random_counts;

constexpr std::size_t kRegionBytes = 1 << 16;

// A rank's part of a region, and what the host does in its place.
class SharedRegion {
 public:
  SharedRegion(Rank& rank, DeviceBackend& ring) : rank_(rank), ring_(ring) {
    auto made = ring.share_memory(kRegionBytes, Status::ok());
    REQUIRE(made.status().message == "");
    region_ = made.take();
  }

  const DeviceRegion& region() const { return region_; }
  std::byte* data() const { return static_cast<std::byte*>(region_.mine.get()); }

  // Tensors of these lengths, one behind the other with `gap` bytes between, from `gap` on.
  void check(const Group& group, const Reduction& reduction, const std::vector<std::size_t>& counts,
             std::size_t gap) {
    const std::size_t width = size_of(reduction.dtype);
    std::vector<Bytes> host;
    std::vector<Operand> here, there;
    for (std::size_t t = 0; t < counts.size(); ++t)
      host.push_back(random_elements(reduction.dtype, counts[t], seed_of(rank_.number(), t)));
    std::byte* at = data();
    for (std::size_t t = 0; t < counts.size(); ++t) {
      at += gap;
      copy(at, host[t].data(), host[t].size());
      there.push_back({at, at, counts[t]});
      here.push_back({host[t].data(), host[t].data(), counts[t]});
      at += counts[t] * width;
    }
    REQUIRE(at <= data() + kRegionBytes);
    REQUIRE(ring_.allreduce_shared(group, there, region_.offsets, reduction).message == "");
    REQUIRE(rank_.cpu().allreduce(group, here, reduction).message == "");
    for (std::size_t t = 0; t < counts.size(); ++t) {
      Bytes got(host[t].size());
      copy(got.data(), there[t].out, got.size());
      CHECK(got == host[t]);
    }
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) const {
    const Current current(rank_.device());
    REQUIRE(rank_.device().driver().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                                  reinterpret_cast<CUdeviceptr>(from), bytes,
                                                  rank_.device().stream()) == CUDA_SUCCESS);
    rank_.synchronize();
  }

  Rank& rank_;
  DeviceBackend& ring_;
  DeviceRegion region_;
};

Reduction sum_of(Dtype dtype, int size, double before = 1.0, double after = 1.0) {
  return {dtype, ReduceOp::kAverage, {before, after, 1.0 * size}};
}

// Nobody's memory goes while a peer still reduces in it (Executor::release).
void part(Rank& rank, const Group& group) {
  rank.synchronize();
  const std::byte mine{};
  Bytes all(group.ranks.size());
  REQUIRE(bootstrap_allgather(rank.cpu(), group, &mine, all.data(), 1).message == "");
}

}  // namespace

TEST_CASE("ring shared: floats, with and without factors, at any place") {
  for (const int size : {2, 3, 4, 5}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      SharedRegion shared(rank, *ring);
      for (const Dtype dtype :
           {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat64}) {
        CAPTURE(name_of(dtype));
        for (const std::size_t gap : {std::size_t{64}, size_of(dtype)}) {
          shared.check(group, sum_of(dtype, size), {301, 0, 1, 77, 2048}, gap);
          shared.check(group, sum_of(dtype, size, 1.0 / 3, 0.7), {403, 16}, gap);
        }
      }
      CHECK(ring->last_algorithm() == std::string("CUDA_SHARED"));
      part(rank, group);
    });
  }
}

TEST_CASE("ring shared: more tensors than fit into one launch, randomly") {
  on_rings({3, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto ring = rank.ring(group);
    SharedRegion shared(rank, *ring);
    shared.check(group, sum_of(Dtype::kFloat32, 3), std::vector<std::size_t>(450, 7), 4);
    for (std::uint64_t seed = 0; seed < 10; ++seed)
      shared.check(group, sum_of(Dtype::kBfloat16, 3), random_counts(seed, 900), 2);
    shared.check(group, sum_of(Dtype::kFloat32, 3), {}, 4);
    shared.check(group, sum_of(Dtype::kFloat32, 3), {0, 0}, 4);
    part(rank, group);
  });
}

TEST_CASE("ring shared: between other operations, whose signals are unchanged") {
  on_rings({3, 2, 2048}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto ring = rank.ring(group);
    SharedRegion shared(rank, *ring);
    const Reduction reduction = sum_of(Dtype::kFloat32, 3);
    for (int turn = 0; turn < 6; ++turn) {
      shared.check(group, reduction, {501, 3}, 64);
      check_allreduce(rank, *ring, group, {reduction, {1001, 30}, turn % 2 == 0});
      if (turn % 2 == 0) shared.check(group, reduction, {1}, 64);
      check_broadcast(rank, *ring, group, turn % 3, {900, 0, 5000}, true);
      check_alltoall(rank, *ring, group, static_cast<std::uint64_t>(turn));
    }
    part(rank, group);
  });
}

TEST_CASE("ring shared: unsupported folds use the path of private memory") {
  on_rings({2, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto ring = rank.ring(group);
    SharedRegion shared(rank, *ring);
    shared.check(group, {Dtype::kInt32, ReduceOp::kSum, {}}, {301, 5}, 64);
    CHECK(ring->last_algorithm() == std::string("CUDA_SLICES"));
    shared.check(group, {Dtype::kFloat32, ReduceOp::kMax, {}}, {301, 5}, 64);
    shared.check(group, sum_of(Dtype::kFloat32, 2), {301, 5}, 64);
    CHECK(ring->last_algorithm() == std::string("CUDA_SHARED"));
    part(rank, group);
  });
}

TEST_CASE("ring shared: a rank without memory is named on all, and the ring continues") {
  on_rings({3, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto ring = rank.ring(group);
    const Status own = rank.number() == 1
                           ? Status::make(Code::kUnavailable, "rank 1 is full", "test", 1)
                           : Status::ok();
    const auto refused = ring->share_memory(kRegionBytes, own);
    CHECK(refused.status().message == "rank 1 is full");
    CHECK(refused.status().rank == 1);
    SharedRegion shared(rank, *ring);
    shared.check(group, sum_of(Dtype::kFloat32, 3), {301, 5}, 64);
    part(rank, group);
  });
}

TEST_CASE("ring shared: the part of a rank outlives its ring") {
  on_rings({2, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    auto ring = rank.ring(group);
    std::shared_ptr<void> mine;
    {
      SharedRegion shared(rank, *ring);
      shared.check(group, sum_of(Dtype::kFloat32, 2), {301, 5}, 64);
      mine = shared.region().mine;
    }
    part(rank, group);
    REQUIRE(ring->finalize().message == "");
    part(rank, group);
    ring.reset();
    const Current current(rank.device());
    CHECK(rank.device().driver().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(mine.get()), 0, 4,
                                                  rank.device().stream()) == CUDA_SUCCESS);
    rank.synchronize();
  });
}

}  // namespace hvd::cuda::test
