// Sums against an oracle that shares no code with the core (test_collective_values.h).
#include <doctest/doctest.h>

#include <limits>

#include "clusters.h"
#include "test_collective_values.h"

namespace hvd::test {
namespace {

// Every rank: all tensors as one operation, each checked to the last bit.
template <typename T>
void check_sums(int size, const std::vector<std::size_t>& counts, bool average = false) {
  on_meshes(cluster_of(size), [&](int rank, Mesh& mesh) {
    CpuBackend backend(mesh);
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kSlices, Algorithm::kRing}) {
      AlgorithmOptions options;
      options.allreduce = algorithm;
      backend.set_options(options);
      std::vector<std::vector<T>> tensors;
      std::vector<Operand> operands;
      for (std::size_t t = 0; t < counts.size(); ++t) {
        tensors.push_back(input_of<T>(rank, t, counts[t]));
        operands.push_back({tensors[t].data(), tensors[t].data(), counts[t]});
      }
      Reduction sum{KindOf<T>::kDtype, average ? ReduceOp::kAverage : ReduceOp::kSum, {}};
      if (average) sum.scaling.divisor = size;
      const Status status = backend.allreduce(everybody(size, rank), operands, sum);
      REQUIRE(status.message == "");
      for (std::size_t t = 0; t < counts.size(); ++t)
        CHECK(same_bytes(tensors[t], expected_sums<T>(size, t, counts[t], average)));
    }
  });
}

__extension__ typedef __int128 Wide;

// Sums of these do not fit in T: both ends of the range, alone and against each other.
template <typename T>
T extreme_at(int rank, std::size_t index) {
  using Limits = std::numeric_limits<T>;
  const auto mixed = (static_cast<std::uint64_t>(rank) * 7919 + index + 1) * 0x9E3779B97F4A7C15U;
  if (index % 5 == 0) return Limits::max();
  if (index % 5 == 1) return Limits::min();
  if (index % 5 == 2) return static_cast<T>(Limits::max() - rank);
  if (index % 5 == 3) return rank == 0 ? Limits::max() : Limits::min();
  return static_cast<T>(mixed >> 11U);
}

template <typename T>
std::vector<T> extremes(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = extreme_at<T>(rank, i);
  return values;
}

template <typename T>
std::vector<T> exact_means(int size, std::size_t count) {
  std::vector<T> means(count);
  for (std::size_t i = 0; i < count; ++i) {
    Wide sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += extreme_at<T>(rank, i);
    means[i] = static_cast<T>(sum / size);  // toward zero
  }
  return means;
}

// Every rank and algorithm: allreduce of two fused tensors in place, and reducescatter.
template <typename T>
void check_means(const Cluster& cluster, const Reduction& mean) {
  constexpr std::size_t kCounts[] = {33, 1009};
  on_meshes(cluster, [&](int rank, Mesh& mesh) {
    CpuBackend backend(mesh);
    const Group group = everybody(cluster.size, rank);
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kSlices,
                                      Algorithm::kRing, Algorithm::kHierarchical}) {
      AlgorithmOptions options = cluster.algorithms;
      options.allreduce = algorithm;
      backend.set_options(options);
      std::vector<std::vector<T>> tensors;
      std::vector<Operand> operands;
      for (const std::size_t count : kCounts) tensors.push_back(extremes<T>(rank, count));
      for (auto& tensor : tensors)
        operands.push_back({tensor.data(), tensor.data(), tensor.size()});
      REQUIRE(backend.allreduce(group, operands, mean).message == "");
      for (const auto& tensor : tensors)
        CHECK(same_bytes(tensor, exact_means<T>(cluster.size, tensor.size())));
    }
    Scatter scatter;
    for (int member = 0; member <= cluster.size; ++member)
      scatter.begins.push_back(static_cast<std::size_t>(member) * 7);
    const std::vector<T> input = extremes<T>(rank, scatter.begins.back());
    std::vector<T> output(7);
    scatter.in = input.data();
    scatter.out = output.data();
    REQUIRE(backend.reducescatter(group, {scatter}, mean).message == "");
    const auto whole = exact_means<T>(cluster.size, input.size());
    CHECK(same_bytes(output, std::vector<T>(whole.begin() + std::ptrdiff_t{7} * rank,
                                            whole.begin() + std::ptrdiff_t{7} * (rank + 1))));
  });
}

Cluster on_hosts(const char* letters, int torus_hosts) {
  Cluster cluster = cluster_of(static_cast<int>(std::string(letters).size()), 512);
  cluster.hosts = letters;
  cluster.algorithms.torus_hosts = torus_hosts;
  return cluster;
}

}  // namespace

#define HVD_INTEGERS \
  std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t

TEST_CASE_TEMPLATE("allreduce: means of integers are exact where their sums wrap", T,
                   HVD_INTEGERS) {
  for (const int size : {2, 3, 5, 8})
    check_means<T>(cluster_of(size), {KindOf<T>::kDtype, ReduceOp::kAverage, {1, 1, 1.0 * size}});
  for (const int size : {2, 4})  // the factors of a sum
    check_means<T>(cluster_of(size), {KindOf<T>::kDtype, ReduceOp::kSum, {1, 1, 1.0 * size}});
}

TEST_CASE_TEMPLATE("hosts: means of integers are exact on several hosts and in a torus", T,
                   std::uint8_t, std::int32_t, std::int64_t) {
  for (const Cluster& cluster : {on_hosts("aabb", 33), on_hosts("aab", 33), on_hosts("abc", 33),
                                 on_hosts("aabbccdd", 4), on_hosts("abcd", 4)}) {
    check_means<T>(cluster, {KindOf<T>::kDtype, ReduceOp::kAverage, {1, 1, 1.0 * cluster.size}});
  }
}

TEST_CASE_TEMPLATE("allreduce: exact for every count and number of ranks", T, std::uint8_t,
                   std::int32_t, std::int64_t, Float16, Bfloat16, float, double) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    const auto n = static_cast<std::size_t>(size);
    for (const std::size_t count : {std::size_t{1}, n - 1, n, n + 1, std::size_t{1009}}) {
      CAPTURE(size);
      CAPTURE(count);
      check_sums<T>(size, {count});
    }
    check_sums<T>(size, {777}, true);
    check_sums<T>(size, {1, 0, 7, 64, 1000, 3, 2, 2049});
  }
}

}  // namespace hvd::test
