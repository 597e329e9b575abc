// What the tensor room must give, element by element and without cleverness, from the rules at the
// head of tensor/reduce.h; and inputs that are awkward.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/half.h"
#include "tensor/kernels.h"
#include "tensor/reduce.h"

namespace hvd::test {

__extension__ typedef __int128 Wide;

struct Truth {  // a bool as a byte: anything but 0 is true
  std::uint8_t byte;
};

template <typename T>
struct Traits;
#define HVD_TRAITS(type, dtype)                   \
  template <>                                     \
  struct Traits<type> {                           \
    static constexpr Dtype kDtype = Dtype::dtype; \
  };
HVD_TRAITS(std::uint8_t, kUint8)
HVD_TRAITS(std::int8_t, kInt8)
HVD_TRAITS(std::uint16_t, kUint16)
HVD_TRAITS(std::int16_t, kInt16)
HVD_TRAITS(std::int32_t, kInt32)
HVD_TRAITS(std::int64_t, kInt64)
HVD_TRAITS(Float16, kFloat16)
HVD_TRAITS(float, kFloat32)
HVD_TRAITS(double, kFloat64)
HVD_TRAITS(Truth, kBool)
HVD_TRAITS(Bfloat16, kBfloat16)
HVD_TRAITS(std::complex<float>, kComplex64)
HVD_TRAITS(std::complex<double>, kComplex128)
#undef HVD_TRAITS

template <typename T>
constexpr bool kShortFloat = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;
template <typename T>
constexpr bool kComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;
// What partial results are kept in.
template <typename T>
using WireOf = std::conditional_t<kShortFloat<T>, float, T>;

template <typename T>
WireOf<T> widened(T value) {
  if constexpr (kShortFloat<T>) {
    return to_float(value);
  } else if constexpr (std::is_same_v<T, Truth>) {
    return {static_cast<std::uint8_t>(value.byte != 0 ? 1 : 0)};
  } else {
    return value;
  }
}

template <typename T>
T narrowed(WireOf<T> value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(value);
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return to_bfloat16(value);
  } else {
    return value;
  }
}

// a op b in the wire dtype.
template <typename W>
W combined(ReduceOp op, W a, W b) {
  const bool sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  if constexpr (std::is_same_v<W, Truth>) {
    const bool any = sum || op == ReduceOp::kMax;
    const bool x = a.byte != 0, y = b.byte != 0;
    return {static_cast<std::uint8_t>((any ? x || y : x && y) ? 1 : 0)};
  } else if constexpr (kComplex<W>) {
    if (sum) return {a.real() + b.real(), a.imag() + b.imag()};
    if (b == W{1}) return a;
    if (a == W{1}) return b;
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_integral_v<W>) {
    using U = std::uint64_t;
    if (sum) return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
    if (op == ReduceOp::kProduct) return static_cast<W>(static_cast<U>(a) * static_cast<U>(b));
    return op == ReduceOp::kMin ? (b < a ? b : a) : (b > a ? b : a);
  } else {
    if (sum) return a + b;
    if (op == ReduceOp::kProduct) return a * b;
    if (std::isnan(b)) return b;
    if (std::isnan(a)) return a;
    return op == ReduceOp::kMin ? (b < a ? b : a) : (b > a ? b : a);
  }
}

// Real to integer, toward zero, the nearest end of the range where it does not fit.
template <typename T>
T truncated(double value) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(value) || value <= static_cast<double>(Limits::min())) return Limits::min();
  if (value >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<T>(value);
}

// As `factored`, of a sum of integers that need not fit in T.
template <typename T>
T mean_of(Wide sum, double by, double over) {
  const bool whole = by == std::floor(by) && std::fabs(by) < 2147483648.0 && over >= 1 &&
                     over == std::floor(over) && over < 1e18;
  if (!whole) return truncated<T>(static_cast<double>(sum) * by / over);
  const Wide quotient = sum * static_cast<std::int64_t>(by) / static_cast<std::int64_t>(over);
  const Wide low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  return static_cast<T>(quotient < low ? low : quotient > high ? high : quotient);
}

// value * by / over, each step rounded on its own.
template <typename W>
W factored(W value, double by, double over) {
  if constexpr (std::is_same_v<W, Truth>) {
    return {static_cast<std::uint8_t>(value.byte != 0 && by / over != 0.0 ? 1 : 0)};
  } else if constexpr (kComplex<W>) {
    using Part = typename W::value_type;
    return {factored<Part>(value.real(), by, over), factored<Part>(value.imag(), by, over)};
  } else if constexpr (std::is_integral_v<W>) {
    return mean_of<W>(value, by, over);
  } else {
    const W product = value * static_cast<W>(by);
    return product / static_cast<W>(over);
  }
}

// A tensor's element after its prescale: rounded to its dtype.
template <typename T>
T entering(T value, double before) {
  return before == 1.0 ? value : narrowed<T>(factored(widened(value), before, 1.0));
}

template <typename T>
T expected_element(const Reduction& reduction, const std::vector<std::vector<T>>& inputs,
                   std::size_t i) {
  if constexpr (std::is_integral_v<T>) {
    if (folds_exactly(reduction)) {
      Wide sum = 0;
      for (const auto& input : inputs) sum += input[i];
      return mean_of<T>(sum, reduction.scaling.after, reduction.scaling.divisor);
    }
  }
  WireOf<T> value = widened(inputs[0][i]);
  for (std::size_t k = 1; k < inputs.size(); ++k)
    value = combined(reduction.op, value, widened(inputs[k][i]));
  return narrowed<T>(factored(value, reduction.scaling.after, reduction.scaling.divisor));
}

template <typename T>
std::vector<T> expected_fold(const Reduction& reduction,
                             const std::vector<std::vector<T>>& inputs) {
  std::vector<T> out;
  for (std::size_t i = 0; i < inputs[0].size(); ++i)
    out.push_back(expected_element(reduction, inputs, i));
  return out;
}

template <typename T>
bool is_nan(T value) {
  if constexpr (kComplex<T>) {
    return std::isnan(value.real()) || std::isnan(value.imag());
  } else if constexpr (kShortFloat<T>) {
    return std::isnan(to_float(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

// How many elements differ in a bit. Where both are NaN it is enough that they are: which of two
// NaN an addition keeps is the machine's choice.
template <typename T>
std::size_t differences(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return a.size() + b.size();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0 && !(is_nan(a[i]) && is_nan(b[i]))) ++wrong;
  return wrong;
}

// Any bits at all: NaN, infinities, subnormals and both zeros come along. Numbers of a usual size
// where `tame`.
template <typename T>
std::vector<T> bits(std::size_t count, std::uint64_t seed, bool tame) {
  std::vector<T> values(count);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  const auto next = [&] {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    return state;
  };
  for (T& value : values) {
    std::uint64_t words[2] = {next(), next()};
    std::memcpy(static_cast<void*>(&value), words, sizeof value);
    const double real = static_cast<double>(static_cast<std::int64_t>(next() >> 40U)) / 2097152.0;
    if constexpr (kComplex<T>) {
      using Part = typename T::value_type;
      if (tame) value = {static_cast<Part>(real - 4), static_cast<Part>(4 - real / 2)};
    } else if constexpr (kShortFloat<T> || std::is_floating_point_v<T>) {
      if (tame) value = narrowed<T>(static_cast<WireOf<T>>(real - 4));
    }
  }
  return values;
}

inline std::vector<const Kernels*> machine_kernels() {
  std::vector<const Kernels*> all{&baseline_kernels()};
  if (avx2_kernels() != nullptr) all.push_back(avx2_kernels());
  if (avx512_kernels() != nullptr) all.push_back(avx512_kernels());
  return all;
}

// Runs body once per instruction set of this machine.
template <typename Body>
void on_every_kernel(const Body& body) {
  for (const Kernels* const kernels : machine_kernels()) {
    use_kernels(kernels);
    body(kernels->name);
  }
  use_kernels(nullptr);
}

inline const std::vector<ReduceOp>& all_ops() {
  static const std::vector<ReduceOp> kOps{ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                          ReduceOp::kMax, ReduceOp::kProduct};
  return kOps;
}

// Calls body(op) for each operator that the dtype knows.
template <typename T, typename Body>
void for_each_op(const Body& body) {
  for (const ReduceOp op : all_ops()) {
    if (!can_reduce(Traits<T>::kDtype, op)) continue;
    CAPTURE(name_of(op));
    body(op);
  }
}

}  // namespace hvd::test
