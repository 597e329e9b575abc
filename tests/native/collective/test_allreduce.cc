// Allreduce: every operator and dtype, number of ranks, count, list and group; all algorithms give
// the same bytes, which are those of the oracle.
#include <doctest/doctest.h>

#include "reductions.h"

namespace hvd::test {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr int kSizes[] = {1, 2, 3, 4, 5, 8};

}  // namespace

TEST_CASE(
    "allreduce: every operator, dtype and number of ranks, by every "
    "algorithm") {
  for (const int size : kSizes) {
    std::vector<ReduceCase> cases;
    for (int number = 0; number < kDtypeCount; ++number) {
      for (const ReduceOp op : kOps) {
        const auto dtype = static_cast<Dtype>(number);
        if (can_reduce(dtype, op))
          cases.push_back({reduction_of(dtype, op, size), {67}, {}, false});
      }
    }
    CAPTURE(size);
    check_reductions(cluster_of(size), cases);
  }
}

TEST_CASE("allreduce: every count around the number of ranks, in place and not") {
  for (const int size : kSizes) {
    const auto n = static_cast<std::size_t>(size);
    std::vector<ReduceCase> cases;
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kInt64}) {
      const Reduction sum = reduction_of(dtype, ReduceOp::kSum, size);
      for (const std::size_t count :
           {std::size_t{0}, std::size_t{1}, n - 1, n, n + 1, std::size_t{1000}}) {
        cases.push_back({sum, {count}, {}, count % 2 == 0});
      }
    }
    CAPTURE(size);
    check_reductions(cluster_of(size), cases);
  }
}

TEST_CASE("allreduce: 100003 elements through small slots") {
  const Reduction sum = reduction_of(Dtype::kFloat32, ReduceOp::kSum, 3);
  const Reduction average = reduction_of(Dtype::kFloat16, ReduceOp::kAverage, 3);
  check_reductions(cluster_of(3, 16384),
                   {{sum, {100003}, {}, true}, {average, {100003}, {}, false}});
}

TEST_CASE("allreduce: any slot size and number of slots gives the same bytes") {
  const Reduction sum = reduction_of(Dtype::kFloat32, ReduceOp::kSum, 3);
  const Reduction brain = reduction_of(Dtype::kBfloat16, ReduceOp::kAverage, 4);
  for (const std::size_t bytes : {64, 192, 4096, 1 << 20}) {
    for (const std::size_t slots : {2, 3, 4, 7}) {
      CAPTURE(bytes);
      CAPTURE(slots);
      check_reductions(cluster_of(3, bytes, slots), {{sum, {2003}, {}, false}});
      check_reductions(cluster_of(4, bytes, slots), {{brain, {1999}, {}, true}});
    }
  }
}

TEST_CASE(
    "allreduce: prescale and postscale, on every input once and on the "
    "result once") {
  for (const int size : {1, 2, 3, 4}) {
    std::vector<ReduceCase> cases;
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat16, Dtype::kFloat64, Dtype::kInt32}) {
      for (const ReduceOp op : kOps) {
        Reduction reduction = reduction_of(dtype, op, size);
        reduction.scaling.before = 0.7;
        reduction.scaling.after = 3.0;
        cases.push_back({reduction, {301, 1}, {}, false});
        cases.push_back({reduction, {5, 0, 77}, {}, true});
      }
    }
    CAPTURE(size);
    check_reductions(cluster_of(size), cases);
  }
}

TEST_CASE(
    "allreduce: random lists of tensors; fusing changes no byte of any "
    "of them") {
  for (const int size : {2, 3, 5}) {
    std::vector<ReduceCase> cases;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Dtype dtype = seed % 2 == 0 ? Dtype::kFloat32 : Dtype::kBfloat16;
      const Reduction sum = reduction_of(dtype, ReduceOp::kSum, size);
      cases.push_back({sum, random_counts(seed, 700), {}, seed % 3 == 0});
    }
    cases.push_back({reduction_of(Dtype::kInt32, ReduceOp::kSum, size),
                     std::vector<std::size_t>(100, 3),
                     {},
                     false});
    CAPTURE(size);
    check_reductions(cluster_of(size), cases);
  }
}

TEST_CASE("allreduce: teams of some ranks, several teams on the same links") {
  const Reduction sum = reduction_of(Dtype::kFloat32, ReduceOp::kSum, 5);
  const Reduction most = reduction_of(Dtype::kFloat64, ReduceOp::kMax, 5);
  check_reductions(cluster_of(5), {{sum, {400}, {1, 3}, false},
                                   {sum, {1000, 2}, {}, true},
                                   {most, {33}, {0, 2, 4}, false},
                                   {sum, {55}, {2}, false},
                                   {sum, {999}, {0, 1, 2, 4}, true}});
}

TEST_CASE("allreduce: the name of the algorithm that was used") {
  on_meshes(cluster_of(2), [&](int rank, Mesh& mesh) {
    CpuBackend backend(mesh);
    std::vector<float> values(10);
    const std::vector<Operand> operands{{values.data(), values.data(), values.size()}};
    const auto name = [&](Algorithm algorithm, const std::vector<int>& ranks) {
      AlgorithmOptions options;
      options.allreduce = algorithm;
      backend.set_options(options);
      const Status status = backend.allreduce(group_of(ranks, rank), operands, {});
      REQUIRE(status.message == "");
      return std::string(backend.last_algorithm());
    };
    CHECK(name(Algorithm::kDirect, {0, 1}) == "SHM_DIRECT");
    CHECK(name(Algorithm::kSlices, {0, 1}) == "SHM_SLICES");
    CHECK(name(Algorithm::kRing, {0, 1}) == "SHM_RING");
    CHECK(name(Algorithm::kHierarchical, {0, 1}) == "SHM_SLICES");
    CHECK(name(Algorithm::kAuto, {rank}) == "LOCAL");
  });
}

}  // namespace hvd::test
