// The 16-bit floats: every value, every rounding, every instruction set of this machine.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor_reference.h"

namespace hvd::test {
namespace {

// Values that stand for all between them, so far apart; a sanitizer makes every pair expensive.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kStride = 4099;
constexpr std::size_t kFewestPairs = 9'000'000;
#else
constexpr std::uint32_t kStride = 163;
constexpr std::size_t kFewestPairs = 100'000'000;
#endif

// A half's value by its definition.
double value_of(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

template <typename T>
std::vector<T> all_values() {
  std::vector<T> all(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<std::uint16_t>(i);
  return all;
}

template <typename T>
std::vector<float> widen(const std::vector<T>& in) {
  std::vector<float> out(in.size());
  load({Traits<T>::kDtype, ReduceOp::kSum, {}}, out.data(), in.data(), in.size());
  return out;
}

template <typename T>
std::vector<T> narrow(const std::vector<float>& in) {
  std::vector<T> out(in.size());
  finalize({Traits<T>::kDtype, ReduceOp::kSum, {}}, out.data(), in.data(), in.size());
  return out;
}

// Every midpoint between two halves, and its neighbours on both sides.
std::vector<float> midpoints() {
  std::vector<float> wide;
  for (std::uint32_t half = 0; half < 0x7C00; ++half) {
    const double below = value_of(static_cast<std::uint16_t>(half));
    const double above = half == 0x7BFF ? 65536.0 : value_of(static_cast<std::uint16_t>(half + 1));
    const auto middle = static_cast<float>((below + above) / 2);
    for (const float value : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e9F)}) {
      wide.push_back(value);
      wide.push_back(-value);
    }
  }
  return wide;
}

// Numbers whose sums of up to eight are exact in float32, and are not in 16 bits.
template <typename T>
std::vector<T> close_numbers(std::size_t count, std::uint64_t seed) {
  const auto sizes = bits<float>(count, seed, true);
  std::vector<T> values;
  for (const float size : sizes) {
    const float far_from_zero = size < 0 ? size - 0.015625F : size + 0.015625F;
    values.push_back(narrowed<T>(far_from_zero));
  }
  return values;
}

// Wrong sums of n ranks against a sum in float64, rounded once; and how many a sum would get wrong
// that is rounded after every addition.
template <typename T>
std::pair<std::size_t, std::size_t> wrong_sums(std::size_t n_ranks, std::size_t count) {
  std::vector<std::vector<T>> inputs;
  std::vector<const void*> pointers;
  for (std::size_t rank = 0; rank < n_ranks; ++rank)
    inputs.push_back(close_numbers<T>(count, n_ranks * 10 + rank));
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<T> out(count);
  fold({Traits<T>::kDtype, ReduceOp::kSum, {}}, out.data(), nullptr, 0, pointers.data(), n_ranks,
       count);
  std::size_t wrong = 0, wrong_stepwise = 0;
  for (std::size_t i = 0; i < count; ++i) {
    double exact = 0;
    T stepwise = inputs[0][i];
    for (std::size_t rank = 0; rank < n_ranks; ++rank) {
      exact += to_float(inputs[rank][i]);
      if (rank > 0) stepwise = narrowed<T>(to_float(stepwise) + to_float(inputs[rank][i]));
    }
    const T expected = narrowed<T>(static_cast<float>(exact));
    wrong += out[i].bits != expected.bits ? 1 : 0;
    wrong_stepwise += stepwise.bits != expected.bits ? 1 : 0;
  }
  return {wrong, wrong_stepwise};
}

// Zeros, the ends of the subnormals and of the normals, one, infinities, NaN that are signalling,
// quiet or have a payload, of either sign; and values spread over everything between.
template <typename T>
std::vector<std::uint16_t> partners() {
  constexpr bool kIsFloat16 = std::is_same_v<T, Float16>;
  constexpr std::uint32_t kNormal = kIsFloat16 ? 0x0400 : 0x0080;
  constexpr std::uint32_t kOne = kIsFloat16 ? 0x3C00 : 0x3F80;
  constexpr std::uint32_t kInfinity = kIsFloat16 ? 0x7C00 : 0x7F80;
  std::vector<std::uint16_t> all;
  for (const std::uint32_t sign : {0x0000U, 0x8000U}) {
    for (const std::uint32_t kind : {0U, 1U, kNormal - 1, kNormal, kOne, kInfinity - 1, kInfinity,
                                     kInfinity + 1, (kInfinity + 0x8000) / 2, 0x7FFFU})
      all.push_back(static_cast<std::uint16_t>(sign | kind));
  }
  for (std::uint32_t spread = kStride; spread < 65536; spread += kStride)
    all.push_back(static_cast<std::uint16_t>(spread));
  return all;
}

template <typename T>
std::size_t wrong_pairs(const Reduction& reduction, const std::vector<T>& first,
                        const std::vector<T>& second) {
  const auto expected = expected_fold<T>(reduction, {first, second});
  const void* const inputs[] = {first.data(), second.data()};
  std::vector<T> out(first.size());
  std::size_t wrong = 0;
  on_every_kernel([&](const char*) {
    fold(reduction, out.data(), nullptr, 0, inputs, 2, out.size());
    wrong += differences(out, expected);
  });
  return wrong;
}

struct Pairs {
  std::size_t seen = 0, wrong = 0;
};

// Every value of the type, before and after each of its partners.
template <typename T>
void add_pairs(ReduceOp op, Pairs& pairs) {
  const double divisor = op == ReduceOp::kAverage ? 2 : 1;
  const Reduction reduction{Traits<T>::kDtype, op, {1, 1, divisor}};
  const auto all = all_values<T>();
  for (const std::uint16_t partner : partners<T>()) {
    const std::vector<T> alike(all.size(), T{partner});
    pairs.wrong += wrong_pairs(reduction, all, alike) + wrong_pairs(reduction, alike, all);
    pairs.seen += 2 * all.size();
  }
}

}  // namespace

TEST_CASE("half D4: all 65,536 values of float16 widen exactly and round-trip") {
  const auto all = all_values<Float16>();
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    const auto wide = widen(all);
    const auto back = narrow<Float16>(wide);
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const double value = value_of(static_cast<std::uint16_t>(i));
      if (std::isnan(value)) {
        if (!std::isnan(wide[i]) || back[i].bits != (i | 0x200U)) ++wrong;  // made quiet
      } else if (static_cast<double>(wide[i]) != value || back[i].bits != i) {
        ++wrong;
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("half D4: all 65,536 values of bfloat16 widen exactly and round-trip") {
  const auto all = all_values<Bfloat16>();
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    const auto wide = widen(all);
    const auto back = narrow<Bfloat16>(wide);
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const bool nan = (i & 0x7FFFU) > 0x7F80U;
      if (bits_of(wide[i]) != i << 16U || back[i].bits != (nan ? i | 0x40U : i)) ++wrong;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("half: float32 narrows to the nearest float16, ties to even") {
  auto wide = midpoints();
  for (const float value : {1e-30F, 1e30F, INFINITY, std::numeric_limits<float>::denorm_min()})
    wide.push_back(value);
  std::vector<Float16> expected;
  for (const float value : wide) expected.push_back(to_float16(value));
  std::size_t wrong = 0;
  for (std::uint32_t half = 0; half < 0x7C00; ++half) {
    const std::size_t at = std::size_t{half} * 6;
    const std::uint32_t even = half % 2 == 0 ? half : half + 1;
    if (expected[at].bits != half || expected[at + 2].bits != even ||
        expected[at + 4].bits != half + 1)
      ++wrong;
  }
  CHECK(wrong == 0);
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    const auto narrowed_values = narrow<Float16>(wide);
    CHECK(std::memcmp(narrowed_values.data(), expected.data(), 2 * wide.size()) == 0);
  });
}

TEST_CASE("half: float32 narrows to the nearest bfloat16, ties to even, and keeps NaN") {
  CHECK(to_bfloat16(1.0F).bits == 0x3F80);
  CHECK(to_bfloat16(float_of(0x3F808000)).bits == 0x3F80);
  CHECK(to_bfloat16(float_of(0x3F818000)).bits == 0x3F82);
  CHECK(to_bfloat16(float_of(0x3F808001)).bits == 0x3F81);
  CHECK(to_bfloat16(float_of(0x7F7FFFFF)).bits == 0x7F80);
  CHECK(to_bfloat16(INFINITY).bits == 0x7F80);
  CHECK(to_bfloat16(float_of(0x7F800001)).bits == 0x7FC0);
  CHECK(to_bfloat16(float_of(0xFFFFFFFF)).bits == 0xFFFF);
  const auto wide = bits<float>(200'003, 5, false);
  std::vector<Bfloat16> expected;
  for (const float value : wide) expected.push_back(to_bfloat16(value));
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    const auto narrowed_values = narrow<Bfloat16>(wide);
    CHECK(std::memcmp(narrowed_values.data(), expected.data(), 2 * wide.size()) == 0);
  });
}

TEST_CASE_TEMPLATE("half D3: a sum in float32 with one rounding is the float64 sum, rounded", T,
                   Float16, Bfloat16) {
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (std::size_t n_ranks = 2; n_ranks <= 8; ++n_ranks) {
      CAPTURE(n_ranks);
      const auto [wrong, wrong_stepwise] = wrong_sums<T>(n_ranks, 50'000);
      CHECK(wrong == 0);
      if (n_ranks > 2) CHECK(wrong_stepwise > 500);
    }
  });
}

TEST_CASE("half D4: every value with every kind of value, 10^8 pairs of every operator" *
          doctest::test_suite("nightly")) {
  for (const ReduceOp op : all_ops()) {
    CAPTURE(std::string(name_of(op)));
    Pairs pairs;
    add_pairs<Float16>(op, pairs);
    add_pairs<Bfloat16>(op, pairs);
    CHECK(pairs.wrong == 0);
    CHECK(pairs.seen >= kFewestPairs);
  }
}

}  // namespace hvd::test
