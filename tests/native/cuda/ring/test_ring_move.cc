// Broadcast, allgather and alltoall on devices: to the last byte, uneven, much of it nothing.
#include <doctest/doctest.h>

#include "cuda/ring/ring_cases.h"

namespace hvd::cuda::test {

using hvd::test::everybody;

TEST_CASE("ring: broadcast from every root, out of place and in place, several tensors") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      for (int root = 0; root < size; ++root) {
        for (const bool in_place : {false, true}) {
          check_broadcast(rank, *ring, group, root, {5001, 0, 3}, in_place);
          check_broadcast(rank, *ring, group, root, {20}, in_place);
          check_broadcast(rank, *ring, group, root, {0}, in_place);
        }
      }
    });
  }
}

TEST_CASE("ring: allgather of blocks of different sizes, some empty, several tensors") {
  for (const int size : {1, 2, 3, 4, 5}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      for (const std::size_t unit : {0, 1, 101, 3001}) {
        check_allgather(rank, *ring, group, {unit}, false);
        check_allgather(rank, *ring, group, {unit, 3, 0, unit * 2}, true);
      }
    });
  }
}

// Pairs have different numbers of rounds, and the ranks too.
TEST_CASE("ring: alltoall, uneven, much of it nothing") {
  for (const int size : {1, 2, 3, 4, 5}) {
    CAPTURE(size);
    on_rings({size, 1, 2048}, [&](Rank& rank) {
      const Group group = everybody(size, rank.number());
      const auto ring = rank.ring(group);
      for (std::uint64_t seed = 0; seed < 20; ++seed) check_alltoall(rank, *ring, group, seed);
    });
  }
}

TEST_CASE("ring: operations of all kinds in turns on the same halves") {
  on_rings({3, 1, 1024}, [&](Rank& rank) {
    const Group group = everybody(3, rank.number());
    const auto ring = rank.ring(group);
    for (std::uint64_t turn = 0; turn < 30; ++turn) {
      const Reduction sum{Dtype::kFloat32, ReduceOp::kSum, {}};
      INFO("turn ", turn, ", rank ", rank.number());
      check_alltoall(rank, *ring, group, turn);
      check_allreduce(rank, *ring, group, {sum, {turn * 30 + 1}, turn % 2 == 0});
      check_broadcast(rank, *ring, group, static_cast<int>(turn % 3), {turn * 50}, false);
      check_reducescatter(rank, *ring, group, sum, {{turn, 40, 3 * turn}});
      check_allgather(rank, *ring, group, {turn * 20}, false);
    }
  });
}

}  // namespace hvd::cuda::test
