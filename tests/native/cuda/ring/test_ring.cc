// Reductions on devices: the bytes of CpuBackend, whatever the type, the operation, the factors,
// the lengths and the group.
#include <doctest/doctest.h>

#include <algorithm>

#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {
namespace {

using hvd::test::everybody;
using hvd::test::group_of;
using hvd::test::random_counts;

Reduction reduction_of(Dtype dtype, ReduceOp op, int size) {
  Reduction reduction{dtype, op, {}};
  if (op == ReduceOp::kAverage) reduction.scaling.divisor = size;
  return reduction;
}

std::vector<Reduction> all_reductions(int size) {
  std::vector<Reduction> all;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (const ReduceOp op :
         {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const auto type = static_cast<Dtype>(dtype);
      if (can_reduce(type, op)) all.push_back(reduction_of(type, op, size));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("ring: every type and operation, in several rounds") {
  for (const int size : {1, 2, 3, 4, 5}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      bool in_place = false;
      for (const Reduction& reduction : all_reductions(size)) {
        INFO(name_of(reduction.dtype), " ", name_of(reduction.op));
        check_allreduce(rank, *ring, group, {reduction, {301, 0, 1, 77, 5}, in_place});
        check_allreduce(rank, *ring, group, {reduction, {403}, in_place});
        in_place = !in_place;
      }
      CHECK(ring->last_algorithm() == std::string(size == 1 ? "LOCAL" : "CUDA_SLICES"));
    });
  }
}

TEST_CASE("ring: factors before and after, alone and together") {
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16,
                                Dtype::kInt32, Dtype::kComplex64}) {
        for (const double before : {1.0, 1.0 / 3}) {
          for (const double after : {1.0, 0.7}) {
            const Reduction reduction{dtype, ReduceOp::kSum, {before, after, 1.0 * size}};
            check_allreduce(rank, *ring, group, {reduction, {130}, false});
            check_allreduce(rank, *ring, group, {reduction, {130, 257}, true});
          }
        }
      }
    });
  }
}

TEST_CASE("ring: a rank that has joined scales nothing, the others do") {
  on_rings({3, 1, 2048}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto ring = rank.ring(group);
    Reduction reduction{Dtype::kFloat32, ReduceOp::kSum, {0.25, 1.0, 1.0}};
    if (rank.number() == 1) reduction.scaling.before = 1.0;
    check_allreduce(rank, *ring, group, {reduction, {500}, true});
    check_allreduce(rank, *ring, group, {reduction, {3, 500}, false});
  });
}

TEST_CASE("ring: lists of tensors by chance, few and many rounds") {
  for (const std::size_t arena_bytes : {1024, 5000, 1 << 20}) {
    for (const int size : {2, 4}) {
      CAPTURE(arena_bytes);
      CAPTURE(size);
      on_rings({size, 1, arena_bytes}, [&](Rank& rank) {
        const Group group = everybody(size, rank.number());
        const auto ring = rank.ring(group);
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
          const Dtype dtype = seed % 2 == 0 ? Dtype::kBfloat16 : Dtype::kFloat64;
          const Reduction reduction = reduction_of(dtype, ReduceOp::kAverage, size);
          check_allreduce(rank, *ring, group, {reduction, random_counts(seed, 900), seed % 3 == 0});
        }
        check_allreduce(rank, *ring, group, {reduction_of(Dtype::kInt8, ReduceOp::kSum, size), {}});
        check_allreduce(rank, *ring, group,
                        {reduction_of(Dtype::kInt8, ReduceOp::kSum, size), {0, 0}});
      });
    }
  }
}

TEST_CASE("ring: on several devices, one of which two ranks share") {
  on_rings({4, 3, 4096}, [&](Rank& rank) {
    const Group group = everybody(4, rank.number());
    const auto ring = rank.ring(group);
    const Reduction reduction = reduction_of(Dtype::kFloat32, ReduceOp::kAverage, 4);
    for (int turn = 0; turn < 5; ++turn)
      check_allreduce(rank, *ring, group, {reduction, {1001, 30}, turn % 2 == 0});
  });
}

TEST_CASE("ring: reducescatter, uneven shares, some of them nothing") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      const auto shares = [&](std::size_t unit) {
        std::vector<std::size_t> all;
        for (int group_rank = 0; group_rank < size; ++group_rank)
          all.push_back(static_cast<std::size_t>((group_rank + 2) % 3) * unit);
        return all;
      };
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kInt16, Dtype::kFloat16}) {
        Reduction reduction = reduction_of(dtype, ReduceOp::kAverage, size);
        check_reducescatter(rank, *ring, group, reduction, {shares(100)});
        check_reducescatter(rank, *ring, group, reduction, {shares(333), shares(0), shares(7)});
        reduction.scaling.before = 0.5;
        check_reducescatter(rank, *ring, group, reduction, {shares(129)});
        check_reducescatter(rank, *ring, group, reduction, {shares(0)});
      }
    });
  }
}

TEST_CASE("ring: Adasum goes over host memory") {
  on_rings({2, 1, 4096}, [&](Rank& rank) {
    const Group group = everybody(2, rank.number());
    const auto ring = rank.ring(group);
    const Reduction reduction{Dtype::kFloat32, ReduceOp::kAdasum, {}};
    check_allreduce(rank, *ring, group, {reduction, {300, 20}, false});
    CHECK(ring->last_algorithm() == std::string("STAGED"));
    check_allreduce(rank, *ring, group,
                    {reduction_of(Dtype::kFloat32, ReduceOp::kSum, 2), {300, 20}, false});
  });
}

TEST_CASE("ring: overlapping teams, one after another without a pause") {
  const std::vector<std::vector<int>> groups{{1, 3}, {0, 1, 2, 3, 4}, {0, 2, 4}, {3}, {1, 2, 3}};
  on_rings({5, 2, 2048}, [&](Rank& rank) {
    std::vector<std::unique_ptr<DeviceBackend>> rings(groups.size());
    for (std::size_t round = 0; round < 25; ++round) {
      const std::size_t number = round * 3 % groups.size();
      const std::vector<int>& ranks = groups[number];
      if (std::find(ranks.begin(), ranks.end(), rank.number()) == ranks.end()) continue;
      const Group group = group_of(ranks, rank.number(), static_cast<int>(number));
      if (rings[number] == nullptr) rings[number] = rank.ring(group);
      const Reduction reduction = reduction_of(Dtype::kFloat32, ReduceOp::kSum, group.size());
      check_allreduce(rank, *rings[number], group, {reduction, {round * 40 + 1, 9}, true});
      check_broadcast(rank, *rings[number], group, static_cast<int>(round) % group.size(), {999},
                      false);
    }
  });
}

}  // namespace hvd::cuda::test
