// Groups that span hosts (names only: all run on one machine, and talk TCP where the names differ).
// The order of folds is host by host, whatever the algorithm.
#include <doctest/doctest.h>

#include <utility>

#include "collective/backend/order.h"
#include "movement.h"
#include "reductions.h"

namespace hvd::test {
namespace {

const char* const kLayouts[] = {"ab", "aab", "aabb", "abab", "abba", "abc", "aabbcc", "aaaab"};

Cluster hosts(const std::string& letters, std::size_t slots = 4) {
  Cluster cluster = cluster_of(static_cast<int>(letters.size()), 512, slots);
  cluster.hosts = letters;
  return cluster;
}

std::vector<ReduceCase> cases_for(int size) {
  std::vector<ReduceCase> cases;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kInt32, Dtype::kComplex128}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      if (!can_reduce(dtype, op)) continue;
      Reduction reduction = reduction_of(dtype, op, size);
      cases.push_back({reduction, {1009}, {}, false});
      if (op == ReduceOp::kSum) reduction.scaling.before = 0.5;
      cases.push_back({reduction, {1, 0, 333, 5}, {}, true});
    }
  }
  return cases;
}

}  // namespace

TEST_CASE("hosts: allreduce folds host by host, with every algorithm") {
  for (const char* letters : kLayouts) {
    const Cluster cluster = hosts(letters);
    CAPTURE(letters);
    check_reductions(cluster, cases_for(cluster.size));
  }
}

TEST_CASE("hosts: a prime number of hosts forms a ring, and gives the same bytes") {
  for (const char* letters : {"aab", "aabb", "abab", "aabbcc", "aabbc", "aaaab"}) {
    Cluster cluster = hosts(letters);
    cluster.algorithms.torus_hosts = 2;
    CAPTURE(letters);
    check_reductions(cluster, cases_for(cluster.size));
  }
  Cluster few = hosts("aabb", 2);
  few.algorithms.torus_hosts = 2;
  check_reductions(few, cases_for(4));
}

TEST_CASE("hosts: many hosts form a torus, and fold row by row with every algorithm") {
  const std::pair<const char*, int> layouts[] = {
      {"aabbccdd", 2}, {"abcdabcd", 2}, {"abccddd", 2},  {"dabcabcd", 2}, {"aabbccddeeff", 3},
      {"abcd", 2},     {"abcdef", 3},   {"abcdefgh", 4}, {"abcdefghi", 3}};
  for (const auto& [letters, columns] : layouts) {
    Cluster cluster = hosts(letters);
    cluster.algorithms.torus_hosts = 4;
    cluster.columns = columns;
    CAPTURE(letters);
    check_reductions(cluster, cases_for(cluster.size));
  }
  Cluster few = hosts("aabbccdd", 2);
  few.algorithms.torus_hosts = 4;
  few.columns = 2;
  check_reductions(few, cases_for(8));
}

TEST_CASE("hosts: a grid of hosts is as nearly square as can be") {
  const auto shape = [](int hosts) {
    const HostGrid grid = host_grid(hosts, 33);
    return std::pair{grid.rows, grid.columns};
  };
  CHECK(shape(32) == std::pair{1, 32});  // too few
  CHECK(shape(37) == std::pair{1, 37});  // a prime
  CHECK(shape(34) == std::pair{2, 17});
  CHECK(shape(64) == std::pair{8, 8});
  CHECK(shape(512) == std::pair{16, 32});
  const HostGrid grid{3, 5};
  for (int host = 0; host < 15; ++host)
    CHECK(grid.host_at(grid.row_of(host), grid.column_of(host)) == host);
}

TEST_CASE("hosts: few slots, and slots too small for a piece of every slice") {
  for (const std::size_t slots : {2, 3}) {
    check_reductions(hosts("aabb", slots), cases_for(4));
    check_reductions(hosts("aaab", slots), cases_for(4));
  }
  Cluster cluster = hosts("aaaab");
  cluster.mesh.slot_bytes = 64;
  check_reductions(cluster, cases_for(5));
}

TEST_CASE("hosts: hierarchical_allreduce off: in the order of the group_ranks") {
  for (const char* letters : {"aabb", "abab", "aab"}) {
    Cluster cluster = hosts(letters);
    cluster.algorithms.hierarchical_allreduce = false;
    check_reductions(cluster, cases_for(cluster.size));
  }
}

TEST_CASE("hosts: teams of some ranks") {
  const Reduction sum = reduction_of(Dtype::kFloat32, ReduceOp::kSum, 3);
  check_reductions(hosts("aabbcc"), {{sum, {700}, {0, 3, 5}, false},
                                     {sum, {700}, {1, 2, 3, 4}, true},
                                     {sum, {700}, {2, 3}, true},
                                     {sum, {7000}, {0, 1, 2, 3, 4}, false}});
}

TEST_CASE("hosts: allgather, broadcast and alltoall") {
  for (const char* letters : kLayouts) {
    for (const bool by_hosts : {true, false}) {
      Cluster cluster = hosts(letters);
      cluster.algorithms.hierarchical_allgather = by_hosts;
      CAPTURE(letters);
      on_meshes(cluster, [&](int rank, Mesh& mesh) {
        CpuBackend backend(mesh, cluster.algorithms);
        const Group group = everybody(cluster.size, rank);
        for (const std::size_t unit : {0, 1, 1500})
          check_allgather(backend, group, {unit, 7}, true);
        for (int root = 0; root < cluster.size; ++root)
          check_broadcast(backend, group, root, {3000, 1}, false);
        check_alltoall(backend, group, 5);
      });
    }
  }
}

TEST_CASE("hosts: the name decides") {
  const auto name = [](const std::string& letters, std::size_t count) {
    std::string said;
    on_meshes(hosts(letters), [&](int rank, Mesh& mesh) {
      CpuBackend backend(mesh);
      std::vector<float> values(count);
      const std::vector<Operand> operands{{values.data(), values.data(), values.size()}};
      const Group group = everybody(static_cast<int>(letters.size()), rank);
      REQUIRE(backend.allreduce(group, operands, {}).message == "");
      if (rank == 0) said = backend.last_algorithm();
    });
    return said;
  };
  CHECK(name("ab", 3) == "TCP_DIRECT");
  CHECK(name("ab", 5000) == "TCP_SLICES");
  CHECK(name("aab", 5000) == "HIERARCHICAL");
}

}  // namespace hvd::test
