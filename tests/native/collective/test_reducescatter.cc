// Reducescatter: shares cut anywhere, every operator, several tensors; the same folds as allreduce.
#include <doctest/doctest.h>

#include "reductions.h"

namespace hvd::test {
namespace {

struct ScatterCase {
  Reduction reduction;
  std::vector<std::vector<std::size_t>> begins;  // by tensor
};

void scatter_once(const Cluster& cluster, CpuBackend& backend, const Group& group, int rank,
                  const ScatterCase& given) {
  const Dtype dtype = given.reduction.dtype;
  const std::size_t width = size_of(dtype);
  const auto group_rank = static_cast<std::size_t>(group.group_rank);
  std::vector<Bytes> inputs, outputs;
  std::vector<Scatter> tensors;
  for (std::size_t t = 0; t < given.begins.size(); ++t) {
    const std::vector<std::size_t>& begins = given.begins[t];
    inputs.push_back(random_elements(dtype, begins.back(), seed_of(rank, t)));
    outputs.emplace_back((begins[group_rank + 1] - begins[group_rank]) * width);
    tensors.push_back({inputs[t].data(), outputs[t].data(), begins});
  }
  const Status status = backend.reducescatter(group, tensors, given.reduction);
  REQUIRE(status.message == "");
  for (std::size_t t = 0; t < given.begins.size(); ++t) {
    const std::vector<std::size_t>& begins = given.begins[t];
    std::vector<Bytes> all;
    for (const int member : group.ranks)
      all.push_back(random_elements(dtype, begins.back(), seed_of(member, t)));
    const Bytes whole = reduced(given.reduction, all, hosts_of(cluster, group.ranks), begins);
    const auto first = whole.begin() + static_cast<std::ptrdiff_t>(begins[group_rank] * width);
    CHECK(outputs[t] == Bytes(first, first + static_cast<std::ptrdiff_t>(outputs[t].size())));
    CHECK(inputs[t] == random_elements(dtype, begins.back(), seed_of(rank, t)));
  }
}

std::vector<std::size_t> random_begins(std::uint64_t seed, std::size_t n) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> begins{0};
  for (std::size_t i = 0; i < n; ++i)
    begins.push_back(begins.back() + (random() % 4 == 0 ? 0 : random() % 150));
  return begins;
}

}  // namespace

TEST_CASE("reducescatter: every operator, representative dtypes, uneven and empty shares") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    const auto n = static_cast<std::size_t>(size);
    std::vector<ScatterCase> cases;
    for (const Dtype dtype :
         {Dtype::kFloat32, Dtype::kFloat16, Dtype::kInt64, Dtype::kBool, Dtype::kComplex64}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin,
                                ReduceOp::kProduct}) {
        if (!can_reduce(dtype, op)) continue;
        Reduction reduction = reduction_of(dtype, op, size);
        cases.push_back({reduction, {even_begins(107, n)}});
        if (dtype == Dtype::kFloat16) reduction.scaling.before = 0.3;
        cases.push_back({reduction, {random_begins(7, n), even_begins(1, n), random_begins(8, n)}});
      }
    }
    for (const std::size_t slots : {2, 4}) {
      const Cluster cluster = cluster_of(size, 128, slots);
      CAPTURE(size);
      on_meshes(cluster, [&](int rank, Mesh& mesh) {
        CpuBackend backend(mesh);
        for (const ScatterCase& given : cases)
          scatter_once(cluster, backend, everybody(size, rank), rank, given);
      });
    }
  }
}

TEST_CASE("reducescatter: a team of some ranks, on several hosts") {
  Cluster cluster = cluster_of(5, 128);
  cluster.hosts = "aabab";
  const ScatterCase given{reduction_of(Dtype::kFloat16, ReduceOp::kSum, 4), {even_begins(999, 4)}};
  on_meshes(cluster, [&](int rank, Mesh& mesh) {
    CpuBackend backend(mesh);
    const std::vector<int> ranks{0, 1, 2, 4};
    if (rank != 3) scatter_once(cluster, backend, group_of(ranks, rank), rank, given);
  });
}

}  // namespace hvd::test
