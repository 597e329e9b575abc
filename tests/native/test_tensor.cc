// Dtypes, 16-bit floats and the reduction kernels: every value, every dtype, every instruction set
// of this machine.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/half.h"
#include "tensor/kernels.h"
#include "tensor/reduce.h"
#include "tensor/view.h"

using namespace hvd;

namespace {

std::vector<const Kernels*> machine_kernels() {
  std::vector<const Kernels*> all{&baseline_kernels()};
  if (avx2_kernels() != nullptr) all.push_back(avx2_kernels());
  if (avx512_kernels() != nullptr) all.push_back(avx512_kernels());
  return all;
}

// A half's value by its definition.
double value_of(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Lengths around the vector widths and the kernels' block.
const std::vector<std::size_t> kLengths{0, 1, 7, 8, 15, 16, 17, 33, 1000, 1023, 1024, 1025, 3001};

template <typename T>
std::vector<T> numbers(std::size_t count, int start) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<T>((static_cast<int>(i) * 7 + start) % 50);
  return values;
}

// Through load, accumulate and finish as three ranks of a ring do it: the exact sum of three.
template <typename T>
void check_sum_of_three(Dtype dtype) {
  for (const std::size_t n : kLengths) {
    const auto a = numbers<T>(n, 1), b = numbers<T>(n, 2), c = numbers<T>(n, 3);
    std::vector<T> first(n), second(n), out(n), copy(n);
    load(dtype, first.data(), a.data(), n, 1.0);
    accumulate(dtype, second.data(), first.data(), b.data(), n, 1.0);
    finish(dtype, out.data(), copy.data(), second.data(), c.data(), n, {});
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i)
      if (out[i] != static_cast<T>(a[i] + b[i] + c[i]) || copy[i] != out[i]) ++wrong;
    CHECK(wrong == 0);
    std::vector<T> in_place = c;
    finish(dtype, in_place.data(), nullptr, second.data(), in_place.data(), n, {});
    CHECK(in_place == out);
  }
}

template <typename Half>
void check_half_sum(Dtype dtype, Half (*round)(float)) {
  for (const std::size_t n : kLengths) {
    std::vector<Half> a(n), b(n), out(n), copy(n);
    std::vector<float> wire(n);
    for (std::size_t i = 0; i < n; ++i) {
      a[i] = round(0.001F * static_cast<float>(i) + 1);
      b[i] = round(1.0F / static_cast<float>(i + 1));
    }
    load(dtype, wire.data(), a.data(), n, 0.5);
    finish(dtype, out.data(), copy.data(), wire.data(), b.data(), n, {0.5, 3.0, 7.0});
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float sum = to_float(a[i]) * 0.5F + to_float(b[i]) * 0.5F;
      if (out[i].bits != round(sum * 3.0F / 7.0F).bits || copy[i].bits != out[i].bits) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("dtype: numbers, sizes and names are the wire's") {
  const std::vector<std::pair<std::string, std::size_t>> rows{
      {"uint8", 1},   {"int8", 1},    {"uint16", 2},  {"int16", 2}, {"int32", 4},   {"int64", 8},
      {"float16", 2}, {"float32", 4}, {"float64", 8}, {"bool", 1},  {"bfloat16", 2}};
  REQUIRE(rows.size() == kDtypeCount);
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    CHECK(name_of(dtype) == rows[static_cast<std::size_t>(i)].first);
    CHECK(size_of(dtype) == rows[static_cast<std::size_t>(i)].second);
  }
  CHECK(can_reduce(Dtype::kBfloat16));
  CHECK_FALSE(can_reduce(Dtype::kBool));
  View view;
  view.count = 3;
  view.dtype = Dtype::kFloat64;
  CHECK(view.bytes() == 24);
}

TEST_CASE(
    "half: all 65,536 values of float16 widen exactly and come back, on every instruction set") {
  std::vector<Float16> all(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<std::uint16_t>(i);
  for (const Kernels* const kernels : machine_kernels()) {
    CAPTURE(kernels->name);
    std::vector<float> wide(65536);
    std::vector<Float16> back(65536);
    kernels->widen_float16(wide.data(), all.data(), all.size());
    kernels->narrow_float16(back.data(), wide.data(), wide.size());
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
  }
}

TEST_CASE(
    "half: float32 narrows to the nearest float16, ties to even, the same on every instruction "
    "set") {
  std::vector<float> wide;
  for (std::uint32_t half = 0; half < 0x7C00; ++half) {  // every midpoint and its neighbours
    const double below = value_of(static_cast<std::uint16_t>(half));
    const double above = half == 0x7BFF ? 65536.0 : value_of(static_cast<std::uint16_t>(half + 1));
    const auto middle = static_cast<float>((below + above) / 2);
    for (const float value : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e9F)}) {
      wide.push_back(value);
      wide.push_back(-value);
    }
  }
  for (const float value : {1e-30F, 1e30F, INFINITY, std::numeric_limits<float>::denorm_min()})
    wide.push_back(value);
  std::vector<Float16> expected(wide.size());
  for (std::size_t i = 0; i < wide.size(); i++) expected[i] = to_float16(wide[i]);
  std::size_t wrong = 0;
  for (std::uint32_t half = 0; half < 0x7C00; ++half) {
    const std::size_t at = std::size_t{half} * 6;
    const std::uint32_t even = half % 2 == 0 ? half : half + 1;
    if (expected[at].bits != half || expected[at + 2].bits != even ||
        expected[at + 4].bits != half + 1)
      ++wrong;
  }
  CHECK(wrong == 0);
  for (const Kernels* const kernels : machine_kernels()) {
    CAPTURE(kernels->name);
    std::vector<Float16> narrow(wide.size());
    kernels->narrow_float16(narrow.data(), wide.data(), wide.size());
    CHECK(std::memcmp(narrow.data(), expected.data(), 2 * wide.size()) == 0);
  }
}

TEST_CASE("half: bfloat16 rounds to the nearest, ties to even, and keeps NaN") {
  CHECK(to_bfloat16(1.0F).bits == 0x3F80);
  CHECK(to_bfloat16(float_of(0x3F808000)).bits == 0x3F80);
  CHECK(to_bfloat16(float_of(0x3F818000)).bits == 0x3F82);
  CHECK(to_bfloat16(float_of(0x3F808001)).bits == 0x3F81);
  CHECK(to_bfloat16(float_of(0x7F7FFFFF)).bits == 0x7F80);
  CHECK(to_bfloat16(INFINITY).bits == 0x7F80);
  CHECK(to_bfloat16(float_of(0x7F800001)).bits == 0x7FC0);
  CHECK(to_bfloat16(float_of(0xFFFFFFFF)).bits == 0xFFFF);
  for (const Kernels* const kernels : machine_kernels()) {
    CAPTURE(kernels->name);
    std::vector<float> wide(65536);
    std::vector<Bfloat16> all(65536), back(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<std::uint16_t>(i);
    kernels->widen_bfloat16(wide.data(), all.data(), all.size());
    kernels->narrow_bfloat16(back.data(), wide.data(), wide.size());
    std::size_t wrong = 0;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const bool nan = (i & 0x7FFFU) > 0x7F80U;
      if (bits_of(wide[i]) != i << 16U || back[i].bits != (nan ? i | 0x40U : i)) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("reduce: three ranks' sum is exact in every dtype, out of place and in place") {
  check_sum_of_three<std::uint8_t>(Dtype::kUint8);
  check_sum_of_three<std::int32_t>(Dtype::kInt32);
  check_sum_of_three<std::int64_t>(Dtype::kInt64);
  check_sum_of_three<float>(Dtype::kFloat32);
  check_sum_of_three<double>(Dtype::kFloat64);
}

TEST_CASE("reduce: 16-bit floats add in float32 and are rounded once") {
  CHECK(wire_dtype(Dtype::kFloat16) == Dtype::kFloat32);
  CHECK(wire_dtype(Dtype::kBfloat16) == Dtype::kFloat32);
  CHECK(wire_dtype(Dtype::kInt64) == Dtype::kInt64);
  check_half_sum<Float16>(Dtype::kFloat16, to_float16);
  check_half_sum<Bfloat16>(Dtype::kBfloat16, to_bfloat16);
}

TEST_CASE("reduce: every instruction set gives the same bits for float sums") {
  std::vector<float> a(1003), b(1003), expected(1003);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = 1.0F / static_cast<float>(i + 3);
    b[i] = std::sqrt(static_cast<float>(i));
    expected[i] = a[i] + b[i];
  }
  for (const Kernels* const kernels : machine_kernels()) {
    CAPTURE(kernels->name);
    std::vector<float> out(1003);
    kernels->add_float32(out.data(), a.data(), b.data(), out.size());
    CHECK(out == expected);
  }
}

TEST_CASE("reduce: integers wrap around in sums and truncate toward zero in averages") {
  const std::vector<std::int32_t> a{std::numeric_limits<std::int32_t>::max(), -7, 7, 5};
  const std::vector<std::int32_t> b{1, 0, 0, 5};
  std::vector<std::int32_t> out(4);
  finish(Dtype::kInt32, out.data(), nullptr, a.data(), b.data(), 4, {});
  CHECK(out == std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), -7, 7, 10});
  finish(Dtype::kInt32, out.data(), nullptr, a.data(), b.data(), 4, {1.0, 1.0, 2.0});
  CHECK(out == std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min() / 2, -3, 3, 5});
  finish(Dtype::kInt32, out.data(), nullptr, a.data(), b.data(), 4, {1.0, 2.5, 1.0});
  CHECK(out == std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(), -17, 17,
                                         25});  // saturates
}

TEST_CASE("reduce: a large int64 keeps its last digit in an average") {
  const std::int64_t large = (std::int64_t{1} << 60) + 3;
  std::int64_t out = 0;
  const std::int64_t doubled = 2 * large;
  scale(Dtype::kInt64, &out, &doubled, 1, {1.0, 1.0, 2.0});
  CHECK(out == large);
}

TEST_CASE("reduce: one rank alone scales its input") {
  const std::vector<double> input{1.0, -2.0, 3.5};
  std::vector<double> out(3);
  scale(Dtype::kFloat64, out.data(), input.data(), 3, {2.0, 3.0, 4.0});
  CHECK(out == std::vector<double>{1.5, -3.0, 5.25});
  const std::vector<Float16> half{to_float16(2.0F), to_float16(-8.0F)};
  std::vector<Float16> scaled(2);
  scale(Dtype::kFloat16, scaled.data(), half.data(), 2, {0.5, 1.0, 1.0});
  CHECK(to_float(scaled[0]) == 1.0F);
  CHECK(to_float(scaled[1]) == -4.0F);
}

TEST_CASE("reduce: pass_on copies to one place or to two") {
  std::vector<std::uint8_t> in(100'001), out(in.size()), copy(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint8_t>(i * 31);
  pass_on(out.data(), nullptr, in.data(), in.size());
  CHECK(out == in);
  out.assign(out.size(), 0);
  pass_on(out.data(), copy.data(), in.data(), in.size());
  CHECK(out == in);
  CHECK(copy == in);
}
