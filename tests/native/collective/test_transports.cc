// The same over the mesh that processes use: shared memory and TCP; tensors in the shared heap; and
// how operations end when somebody gives up.
#include <doctest/doctest.h>

#include "reductions.h"
#include "transport/shm/shared_heap.h"

namespace hvd::test {
namespace {

Cluster over(const char* transport, int size, std::size_t slot_bytes = 1024) {
  Cluster cluster = cluster_of(size, slot_bytes);
  cluster.transport = transport;
  cluster.mesh.heap_bytes = std::size_t{64} << 20U;
  return cluster;
}

// Where the tensors of every rank lie in the heap: rank by rank, the second one after the first.
struct Places {
  std::size_t first = 0, second = 0;  // elements
  std::size_t bytes() const { return ((first + second) * 8 + 4095) / 4096 * 4096; }
};

void check_shared(Mesh& mesh, const Group& group, int rank, const Places& group_ranks,
                  const Reduction& reduction, const std::vector<Bytes>& expected) {
  CpuBackend backend(mesh);
  const std::size_t width = size_of(reduction.dtype);
  const auto base = [&](int of) {
    return mesh.heap()->base() + static_cast<std::size_t>(of) * group_ranks.bytes();
  };
  REQUIRE(mesh.heap() != nullptr);
  if (rank == group.ranks.front()) {
    for (const int member : group.ranks) {
      const Status status = mesh.heap()->claim(
          static_cast<std::size_t>(member) * group_ranks.bytes(), group_ranks.bytes());
      REQUIRE(status.message == "");
    }
  }
  std::vector<float> nothing(1);  // everybody has its pages, and later: its input
  const std::vector<Operand> meet{{nothing.data(), nothing.data(), 1}};
  REQUIRE(backend.allreduce(group, meet, {}).message == "");
  std::byte* const second = base(rank) + group_ranks.first * width;
  const Bytes a = random_elements(reduction.dtype, group_ranks.first, seed_of(rank, 0));
  const Bytes b = random_elements(reduction.dtype, group_ranks.second, seed_of(rank, 1));
  std::memcpy(base(rank), a.data(), a.size());
  std::memcpy(second, b.data(), b.size());
  REQUIRE(backend.allreduce(group, meet, {}).message == "");
  std::vector<std::ptrdiff_t> offsets;
  for (const int member : group.ranks) offsets.push_back(base(member) - base(rank));
  const Status status = backend.allreduce_shared(
      group, {{base(rank), base(rank), group_ranks.first}, {second, second, group_ranks.second}},
      offsets, reduction);
  REQUIRE(status.message == "");
  CHECK(std::memcmp(base(rank), expected[0].data(), expected[0].size()) == 0);
  CHECK(std::memcmp(second, expected[1].data(), expected[1].size()) == 0);
  if (group.size() > 1) CHECK(std::string(backend.last_algorithm()) == "SHM_SHARED");
}

}  // namespace

TEST_CASE("allreduce over shared memory and TCP: every algorithm equals the oracle") {
  for (const char* transport : {"shm", "tcp"}) {
    for (const int size : {1, 2, 3, 5}) {
      std::vector<ReduceCase> cases;
      for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kUint8}) {
        const Reduction sum = reduction_of(dtype, ReduceOp::kSum, size);
        cases.push_back({sum, {10007}, {}, false});
        cases.push_back({sum, {1}, {}, true});
        cases.push_back({sum, random_counts(3, 900), {}, true});
      }
      CAPTURE(transport);
      CAPTURE(size);
      check_reductions(over(transport, size), cases);
    }
  }
}

TEST_CASE("shared: in the heap, for every number of ranks and a team of some") {
  for (const int size : {2, 3, 4, 5}) {
    for (const bool scaled : {false, true}) {
      Reduction reduction = reduction_of(Dtype::kFloat16, ReduceOp::kAverage, size);
      if (scaled) reduction.scaling.before = 0.3;
      const Places group_ranks{10007, 3};
      const ReduceCase given{reduction, {group_ranks.first, group_ranks.second}, {}, true};
      std::vector<int> ranks;
      for (int rank = size % 2; rank < size; ++rank) ranks.push_back(rank);
      const Cluster cluster = over("shm", size);
      const std::vector<Bytes> expected = expected_of(cluster, given, ranks);
      CAPTURE(size);
      on_meshes(cluster, [&](int rank, Mesh& mesh) {
        if (rank < ranks.front()) return;
        check_shared(mesh, group_of(ranks, rank), rank, group_ranks, reduction, expected);
      });
    }
  }
}

TEST_CASE("an abort ends every rank that waits inside an operation, with the abort's cause") {
  for (const char* transport : {"", "shm", "tcp"}) {
    for (const Algorithm algorithm : kAlgorithms) {
      Cluster cluster = over(transport, 3, 64);
      CAPTURE(transport);
      on_meshes(cluster, [&](int rank, Mesh& mesh) {
        if (rank == 2) {
          mesh.raise_everywhere(Status::make(Code::kAborted, "rank 2 gave up", "test", 2));
          return;
        }
        AlgorithmOptions options;
        options.allreduce = algorithm;
        CpuBackend backend(mesh, options);
        std::vector<float> values(algorithm == Algorithm::kDirect ? 10 : 100000);
        const Status status = backend.allreduce(
            everybody(3, rank), {{values.data(), values.data(), values.size()}}, {});
        CHECK(status.code == Code::kAborted);
        CHECK(status.rank == 2);
        CHECK(status.message == "rank 2 gave up");
      });
    }
  }
}

TEST_CASE("a slot of the wrong length is reported as a bug, not read") {
  on_meshes(cluster_of(2), [](int rank, Mesh& mesh) {
    AlgorithmOptions options;
    options.allreduce = Algorithm::kDirect;
    CpuBackend backend(mesh, options);
    std::vector<float> values(10);
    const std::size_t count = rank == 0 ? 10 : 9;
    const Status status =
        backend.allreduce(everybody(2, rank), {{values.data(), values.data(), count}}, {});
    CHECK(status.code == Code::kInternal);
    CHECK(status.rank == 1 - rank);
  });
}

}  // namespace hvd::test
