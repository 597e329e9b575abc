// The collectives that move bytes: broadcast, allgather, alltoall. Any group, uneven and empty
// blocks, one after the other on the same links.
#include <doctest/doctest.h>

#include "movement.h"

namespace hvd::test {

TEST_CASE("broadcast: every root, out of place and in place, several tensors") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    CAPTURE(size);
    on_meshes(cluster_of(size, 128, 3), [&](int rank, Mesh& mesh) {
      CpuBackend backend(mesh);
      for (int root = 0; root < size; ++root) {
        for (const bool in_place : {false, true}) {
          check_broadcast(backend, everybody(size, rank), root, {501, 0, 3}, in_place);
          check_broadcast(backend, everybody(size, rank), root, {20}, in_place);
        }
      }
    });
  }
}

TEST_CASE("allgather: blocks of different sizes, some empty, several tensors") {
  for (const int size : {1, 2, 3, 4, 5, 8, 9}) {  // 9: round the ring, unless it is little
    for (const std::size_t slots : {2, 4}) {
      CAPTURE(size);
      on_meshes(cluster_of(size, 64, slots), [&](int rank, Mesh& mesh) {
        CpuBackend backend(mesh);
        const Group group = everybody(size, rank);
        for (const std::size_t unit : {0, 1, 101, 9001}) {
          check_allgather(backend, group, {unit}, false);
          check_allgather(backend, group, {unit, 3, 0, unit * 2}, true);
        }
      });
    }
  }
}

TEST_CASE("alltoall: uneven, much of it nothing") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    for (const std::size_t slots : {1, 2, 4}) {
      CAPTURE(size);
      on_meshes(cluster_of(size, 64, slots), [&](int rank, Mesh& mesh) {
        CpuBackend backend(mesh);
        for (std::uint64_t seed = 0; seed < 12; ++seed)
          check_alltoall(backend, everybody(size, rank), seed);
      });
    }
  }
}

TEST_CASE("moving within teams of some ranks, mixed, on the same links without a pause") {
  const std::vector<std::vector<int>> groups{{1, 3}, {0, 1, 2, 3, 4}, {0, 2, 4}, {3}, {1, 2, 3}};
  for (const char* transport : {"", "shm", "tcp"}) {
    Cluster cluster = cluster_of(5, 64, 2);
    cluster.transport = transport;
    CAPTURE(transport);
    on_meshes(cluster, [&](int rank, Mesh& mesh) {
      CpuBackend backend(mesh);
      for (int round = 0; round < 20; ++round) {
        const auto number = static_cast<std::size_t>(round) % groups.size();
        const std::vector<int>& ranks = groups[number];
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        const Group group = group_of(ranks, rank, static_cast<int>(number));
        check_broadcast(backend, group, round % group.size(), {333, 20}, round % 2 == 0);
        check_alltoall(backend, group, static_cast<std::uint64_t>(round));
        check_allgather(backend, group, {200, 1}, round % 2 == 0);
      }
    });
  }
}

}  // namespace hvd::test
