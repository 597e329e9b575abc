// Sums against an oracle that shares no code with the core (test_collective_values.h).
#include <doctest/doctest.h>

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

}  // namespace

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
