// Adasum with ranks as threads: against the rule applied to whole vectors in float64.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "collective/algorithm/algorithms.h"
#include "ranks.h"
#include "tensor/half.h"
#include "transport/mesh/mesh.h"

namespace hvd::test {
namespace {

using Vector = std::vector<double>;
using Vectors = std::vector<Vector>;  // the operands of one rank

MeshOptions small_slots() {
  MeshOptions options;
  options.slot_bytes = 256;
  options.slots = 3;
  options.heap_bytes = std::size_t{1} << 20U;
  return options;
}

Group group_of(const std::vector<int>& ranks, int rank) {
  Group group;
  group.ranks = ranks;
  while (group.ranks[static_cast<std::size_t>(group.group_rank)] != rank) ++group.group_rank;
  return group;
}

std::vector<int> first_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector put_together(const Vector& a, const Vector& b) {
  const double ab = dot(a, b), aa = dot(a, a), bb = dot(b, b);
  Vector sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    sum[i] = (aa > 0 ? 1 - ab / (2 * aa) : 1) * a[i] + (bb > 0 ? 1 - ab / (2 * bb) : 1) * b[i];
  return sum;
}

Vector expected_adasum(std::vector<Vector> vectors) {
  std::size_t core = 1;
  while (core * 2 <= vectors.size()) core *= 2;
  for (std::size_t i = core; i < vectors.size(); ++i)
    vectors[i - core] = put_together(vectors[i - core], vectors[i]);
  for (std::size_t distance = 1; distance < core; distance *= 2)
    for (std::size_t i = 0; i < core; i += 2 * distance)
      vectors[i] = put_together(vectors[i], vectors[i + distance]);
  return vectors[0];
}

template <typename T>
struct Kind;
template <>
struct Kind<float> {
  static constexpr Dtype kDtype = Dtype::kFloat32;
  static constexpr double kEpsilon = 0x1p-24;
  static float of(double value) { return static_cast<float>(value); }
  static double real(float value) { return value; }
};
template <>
struct Kind<double> {
  static constexpr Dtype kDtype = Dtype::kFloat64;
  static constexpr double kEpsilon = 0x1p-53;
  static double of(double value) { return value; }
  static double real(double value) { return value; }
};
template <>
struct Kind<Float16> {
  static constexpr Dtype kDtype = Dtype::kFloat16;
  static constexpr double kEpsilon = 0x1p-11;
  static Float16 of(double value) { return to_float16(static_cast<float>(value)); }
  static double real(Float16 value) { return to_float(value); }
};
template <>
struct Kind<Bfloat16> {
  static constexpr Dtype kDtype = Dtype::kBfloat16;
  static constexpr double kEpsilon = 0x1p-8;
  static Bfloat16 of(double value) { return to_bfloat16(static_cast<float>(value)); }
  static double real(Bfloat16 value) { return to_float(value); }
};

// Runs Adasum over the ranks; inputs by group rank. Gives every member's results.
template <typename T>
std::vector<std::vector<std::vector<T>>> results_of(
    const std::vector<std::vector<std::vector<T>>>& inputs, const std::vector<int>& ranks,
    bool in_place, const Scaling& scaling = {}) {
  const auto meshes = make_local_meshes(ranks.back() + 1, small_slots());
  auto outputs = inputs;
  run_ranks(static_cast<int>(ranks.size()), [&](int group_rank) {
    const auto at = static_cast<std::size_t>(group_rank);
    std::vector<Operand> operands;
    for (std::size_t k = 0; k < inputs[at].size(); ++k) {
      if (!in_place)
        std::memset(static_cast<void*>(outputs[at][k].data()), 0xEE,
                    outputs[at][k].size() * sizeof(T));
      operands.push_back({in_place ? outputs[at][k].data() : inputs[at][k].data(),
                          outputs[at][k].data(), inputs[at][k].size()});
    }
    const int rank = ranks[at];
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    for (int round = 0; round < (in_place ? 1 : 2); ++round) {
      const Status status = adasum(mesh, group_of(ranks, rank), operands, Kind<T>::kDtype, scaling);
      REQUIRE(status.message == "");
    }
  });
  return outputs;
}

template <typename T>
bool same_everywhere(const std::vector<std::vector<std::vector<T>>>& results) {
  for (const auto& vectors : results)
    for (std::size_t k = 0; k < vectors.size(); ++k)
      if (vectors[k].size() != 0 &&
          std::memcmp(vectors[k].data(), results[0][k].data(), vectors[k].size() * sizeof(T)) != 0)
        return false;
  return true;
}

// Neither parallel nor orthogonal, of different lengths in different ranks.
template <typename T>
std::vector<T> random_vector(std::size_t group_rank, std::size_t k, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto mixed =
        static_cast<double>((group_rank * 7919 + k * 104729 + i * i * 31 + 17) % 3001);
    values[i] = Kind<T>::of((mixed - 1200.0) / 3001.0 * (1.0 + static_cast<double>(group_rank)));
  }
  return values;
}

template <typename T>
void check_random(const std::vector<int>& ranks, const std::vector<std::size_t>& counts,
                  bool in_place) {
  std::vector<std::vector<std::vector<T>>> inputs(ranks.size());
  for (std::size_t group_rank = 0; group_rank < ranks.size(); ++group_rank)
    for (std::size_t k = 0; k < counts.size(); ++k)
      inputs[group_rank].push_back(random_vector<T>(group_rank, k, counts[k]));
  const auto results = results_of(inputs, ranks, in_place);
  CHECK(same_everywhere(results));
  for (std::size_t k = 0; k < counts.size(); ++k) {
    std::vector<Vector> exact(ranks.size());
    for (std::size_t group_rank = 0; group_rank < ranks.size(); ++group_rank)
      for (const T& value : inputs[group_rank][k])
        exact[group_rank].push_back(Kind<T>::real(value));
    const Vector expected = expected_adasum(exact);
    double largest = 0;
    for (const Vector& vector : exact)
      for (const double value : vector)
        largest += std::fabs(value) / static_cast<double>(counts[k]);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < counts[k]; ++i) {
      // 16 bits are rounded once; every level before rounds in the wire dtype.
      const double once = Kind<T>::kEpsilon * std::fabs(expected[i]);
      const double steps = std::min(Kind<T>::kEpsilon, 0x1p-24) * 64 * (largest + 10);
      if (!(std::fabs(Kind<T>::real(results[0][k][i]) - expected[i]) <= once + steps)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("adasum: any number of ranks, within the rounding of the rule in float64", T,
                   float, double, Float16, Bfloat16) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8}) {
    CAPTURE(size);
    check_random<T>(first_ranks(size), {1000, 37}, false);
    check_random<T>(first_ranks(size), {5, 0, 1, 2049}, true);
    check_random<T>(first_ranks(size), {1}, false);
  }
}

TEST_CASE("adasum: a team that is a part of the ranks") {
  check_random<float>({1, 2, 4}, {300}, true);
  check_random<double>({0, 3, 5, 6}, {301, 7}, false);
}

TEST_CASE("adasum: nothing to do sends nothing") {
  for (const int size : {1, 3}) check_random<float>(first_ranks(size), {0, 0}, true);
}

TEST_CASE("adasum: orthogonal vectors give the sum, exactly") {
  for (const int size : {2, 3, 4, 5, 8}) {
    CAPTURE(size);
    const auto n = static_cast<std::size_t>(size);
    std::vector<std::vector<std::vector<float>>> inputs(n);
    std::vector<float> sum(3 * n);
    for (std::size_t group_rank = 0; group_rank < n; ++group_rank) {
      std::vector<float> vector(3 * n);
      for (std::size_t i = 0; i < 3; ++i)
        sum[3 * group_rank + i] = vector[3 * group_rank + i] =
            static_cast<float>(group_rank + i) + 0.3F;
      inputs[group_rank].push_back(vector);
    }
    for (const auto& result : results_of(inputs, first_ranks(size), true)) CHECK(result[0] == sum);
  }
}

TEST_CASE("adasum: parallel vectors give the average") {
  for (const int size : {2, 4, 8}) {
    CAPTURE(size);
    std::vector<std::vector<std::vector<double>>> inputs;
    for (int group_rank = 0; group_rank < size; ++group_rank)
      inputs.push_back({{1.5, -2.0, 0.25, 8.0, 0.0}});
    for (const auto& result : results_of(inputs, first_ranks(size), false))
      CHECK(result == inputs[0]);
  }
  // Of different lengths: the mean of the two.
  const std::vector<std::vector<std::vector<double>>> two{{{1, 2, -4}}, {{3, 6, -12}}};
  for (const auto& result : results_of(two, {0, 1}, true))
    CHECK(result[0] == std::vector<double>{2, 4, -8});
}

TEST_CASE("adasum: every operand is a separate vector") {
  // Alone, the first operands are parallel and the second ones orthogonal.
  const std::vector<std::vector<std::vector<float>>> inputs{{{2, 4}, {1, 0, 0}},
                                                            {{2, 4}, {0, 3, 1}}};
  for (const auto& result : results_of(inputs, {0, 1}, false)) {
    CHECK(result[0] == std::vector<float>{2, 4});
    CHECK(result[1] == std::vector<float>{1, 3, 1});
  }
}

TEST_CASE("adasum: a vector of zeros, or one next to it, changes nothing") {
  const std::vector<std::vector<std::vector<float>>> inputs{
      {{0, 0, 0}, {1, 2, 3}}, {{1, -2, 0.5F}, {0, 0, 0}}, {{0, 0, 0}, {0, 0, 0}}};
  for (const auto& result : results_of(inputs, {0, 1, 2}, true)) {
    CHECK(result[0] == inputs[1][0]);
    CHECK(result[1] == inputs[0][1]);
  }
  const std::vector<std::vector<std::vector<double>>> small{{{1e-160, 0}}, {{1e-160, 1}}};
  for (const auto& result : results_of(small, {0, 1}, true)) CHECK(result[0][0] == 2e-160);
}

TEST_CASE("adasum D4: a NaN reaches every rank") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::vector<std::vector<float>>> inputs(3, {std::vector<float>(10, 1.0F)});
  inputs[2][0][7] = nan;
  for (const auto& result : results_of(inputs, {0, 1, 2}, true)) CHECK(std::isnan(result[0][7]));
}

TEST_CASE("adasum: prescale is rounded to the dtype first, postscale is applied once, last") {
  const Float16 a = to_float16(2050.0F);
  const double before = 0.49975586;
  const std::vector<std::vector<std::vector<Float16>>> inputs{{{a, to_float16(0)}},
                                                              {{to_float16(0), a}}};
  const float entered = to_float(to_float16(2050.0F * static_cast<float>(before)));
  for (const auto& result : results_of(inputs, {0, 1}, true, {before, 3, 1})) {
    CHECK(result[0][0].bits == to_float16(entered * 3).bits);
    CHECK(result[0][1].bits == to_float16(entered * 3).bits);
  }
}

TEST_CASE("adasum: an abort ends a rank that waits, with the abort's cause") {
  const auto meshes = make_local_meshes(3, small_slots());
  run_ranks(3, [&](int rank) {
    Mesh& mesh = *meshes[static_cast<std::size_t>(rank)];
    if (rank == 2) {
      mesh.raise_everywhere(Status::make(Code::kAborted, "rank 2 gave up", "test", 2));
      return;
    }
    std::vector<float> values(10'000, 1.0F);
    const Status status =
        adasum(mesh, group_of({0, 1, 2}, rank), {{values.data(), values.data(), values.size()}},
               Dtype::kFloat32, {});
    CHECK(status.code == Code::kAborted);
    CHECK(status.message == "rank 2 gave up");
  });
}

}  // namespace hvd::test
