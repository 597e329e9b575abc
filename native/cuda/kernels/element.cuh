// Element operations of the kernels. Compiled twice: by nvcc for devices, and by the host's
// compiler for the fake driver of the tests (docs/decisions/0018). Words and rules are those of
// tensor/kernels.inc: a format says how a lane is stored and in what it is reckoned, an operator
// what is done to two of them. Every step is rounded on its own.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define HVD_BOTH __host__ __device__ __forceinline__
#define HVD_UNROLL _Pragma("unroll")
#define HVD_ROLLED _Pragma("unroll 1")
#else
#define HVD_BOTH inline
#define HVD_UNROLL
#define HVD_ROLLED
#endif

namespace hvd::cuda {

template <typename To, typename From>
HVD_BOTH To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// The factors of a step: times `by`, then divided by `over`; 1 is no step at all.
struct Ratio {
  double by = 1.0;
  double over = 1.0;
};
HVD_BOTH bool is_one(const Ratio& ratio) { return ratio.by == 1.0 && ratio.over == 1.0; }

// Formats.

template <typename T>
struct Plain {
  using Stored = T;
  using FastPath = T;
  static HVD_BOTH T widen(T value) { return value; }
  static HVD_BOTH T narrow(T value) { return value; }
};

// Any byte but 0 is true, and true is stored as 1.
struct Truth {
  using Stored = std::uint8_t;
  using FastPath = std::uint8_t;
  static HVD_BOTH FastPath widen(Stored value) { return value != 0 ? 1 : 0; }
  static HVD_BOTH Stored narrow(FastPath value) { return value; }
};

struct Half {
  using Stored = std::uint16_t;
  using FastPath = float;

  // A device's own conversions round as half.h does, but give every NaN the same bits.
  static HVD_BOTH float widen(Stored value) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16U;
    const std::uint32_t rest = value & 0x7FFFU;
    if (rest > 0x7C00U) return bits_as<float>(sign | 0x7FC00000U | ((rest & 0x3FFU) << 13U));
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
#else
    if (rest == 0x7C00U) return bits_as<float>(sign | 0x7F800000U);
    const float magnitude = bits_as<float>(rest << 13U) * bits_as<float>(0x77800000U);  // 2^112
    return bits_as<float>(sign | bits_as<std::uint32_t>(magnitude));
#endif
  }

  static HVD_BOTH Stored narrow(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16U) & 0x8000U;
    const std::uint32_t rest = bits & 0x7FFFFFFFU;
    if (rest > 0x7F800000U) return static_cast<Stored>(sign | 0x7E00U | ((rest >> 13U) & 0x3FFU));
#ifdef __CUDA_ARCH__
    Stored half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    std::uint32_t half = (rest - 0x38000000U + 0xFFFU + ((rest >> 13U) & 1U)) >> 13U;
    if (rest >= 0x477FF000U) half = 0x7C00U;  // 65520 and above round to infinity
    if (rest < 0x38800000U)  // subnormal: adding 0.5 rounds its bits and puts them at the end
      half = bits_as<std::uint32_t>(bits_as<float>(rest) + 0.5F) - 0x3F000000U;
    return static_cast<Stored>(sign | half);
#endif
  }
};

struct Brain {
  using Stored = std::uint16_t;
  using FastPath = float;
  static HVD_BOTH float widen(Stored value) {
    return bits_as<float>(static_cast<std::uint32_t>(value) << 16U);
  }
  static HVD_BOTH Stored narrow(float value) {
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
    const std::uint32_t quiet = (bits >> 16U) | 0x40U;
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<Stored>(nan ? quiet : rounded);
  }
};

// A complex number, where its parts cannot be treated as two lanes.
template <typename T>
struct Two {
  T re, im;
};

// A NaN as an x86 processor makes it. Devices give every NaN the same bits; the host's compiler
// leaves it to the processor. Which of two NaN is kept is the machine's choice anyway.
template <typename T>
HVD_BOTH T with_nan_of([[maybe_unused]] T a, [[maybe_unused]] T b, T result) {
#ifdef __CUDA_ARCH__
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr Bits kQuiet = Bits{1} << (sizeof(T) == 4 ? 22 : 51);
  constexpr Bits kInvalid = ~(kQuiet - 1);  // sign, exponent and the quiet bit
  if (result != result) {
    const Bits kept = bits_as<Bits>(a != a ? a : b);
    result = bits_as<T>(a != a || b != b ? kept | kQuiet : kInvalid);
  }
#endif
  return result;
}

// Operators.

// Integers as they wrap around: unsigned, and wide enough not to become int.
template <typename T>
using Wrapping = std::conditional_t<sizeof(T) < 4, std::uint32_t, T>;

struct Add {
  template <typename T>
  static HVD_BOTH T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return with_nan_of<T>(a, b, a + b);
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Multiply {
  template <typename T>
  static HVD_BOTH T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return with_nan_of<T>(a, b, a * b);
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
// The first of equals; a NaN if there is one.
struct Least {
  template <typename T>
  static HVD_BOTH T apply(T a, T b) {
    return b < a || b != b ? b : a;
  }
};
struct Most {
  template <typename T>
  static HVD_BOTH T apply(T a, T b) {
    return b > a || b != b ? b : a;
  }
};
struct Or {
  template <typename T>
  static HVD_BOTH T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct And {
  template <typename T>
  static HVD_BOTH T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
// One times x is x to the last bit.
struct ComplexMultiply {
  template <typename T>
  static HVD_BOTH Two<T> apply(Two<T> a, Two<T> b) {
    if (b.re == T{1} && b.im == T{0}) return a;
    if (a.re == T{1} && a.im == T{0}) return b;
    const T straight_re = Multiply::apply(a.re, b.re), crossed_re = Multiply::apply(a.im, b.im);
    const T straight_im = Multiply::apply(a.re, b.im), crossed_im = Multiply::apply(a.im, b.re);
    return {with_nan_of<T>(straight_re, crossed_re, straight_re - crossed_re),
            Add::apply(straight_im, crossed_im)};
  }
};

// A result that is still in a register.
template <typename FastPath>
HVD_BOTH FastPath scaled(FastPath value, const Ratio& ratio) {
  if constexpr (std::is_floating_point_v<FastPath>) {
    const auto by = static_cast<FastPath>(ratio.by), over = static_cast<FastPath>(ratio.over);
    if (ratio.by != 1.0) value = Multiply::apply(value, by);
    if (ratio.over != 1.0) value = with_nan_of<FastPath>(value, over, value / over);
  }
  return value;
}
template <typename T>
HVD_BOTH Two<T> scaled(const Two<T>& value, const Ratio& ratio) {
  return {scaled(value.re, ratio), scaled(value.im, ratio)};
}

// For devices, which may not call the library's functions.
template <typename T>
struct Ends {
  static constexpr T kLow = std::numeric_limits<T>::min();
  static constexpr T kHigh = std::numeric_limits<T>::max();
};

// Toward zero; what does not fit becomes the nearest end of the range, NaN the lower one.
template <typename T>
HVD_BOTH T truncated(double value) {
  constexpr auto kLow = static_cast<double>(Ends<T>::kLow);
  constexpr auto kHigh = static_cast<double>(Ends<T>::kHigh);
  value = value > kLow ? value : kLow;
  value = value < kHigh ? value : kHigh;
  return static_cast<T>(static_cast<std::int32_t>(value));
}

__extension__ typedef __int128 Int128;

HVD_BOTH bool is_whole(double value, double most) {
  return value > -most && value < most &&
         value == static_cast<double>(static_cast<std::int64_t>(value));
}

// An int64, or a sum of up to 2^31 of them, scaled: it fits in an int64 then. Whole factors are
// applied as whole numbers, so that the last digits stay.
HVD_BOTH Int128 scaled(Int128 value, const Ratio& ratio) {
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  constexpr Int128 kLow = Ends<std::int64_t>::kLow, kHigh = Ends<std::int64_t>::kHigh;
  if (is_whole(ratio.by, 2147483648.0) && is_whole(ratio.over, kEnd) && ratio.over >= 1.0) {
    value *= static_cast<std::int64_t>(ratio.by);
    value /= static_cast<std::int64_t>(ratio.over);
    if (value > kHigh) return kHigh;
    return value < kLow ? kLow : value;
  }
  const double product = static_cast<double>(value) * ratio.by / ratio.over;
  if (product >= kEnd) return kHigh;
  return product > -kEnd ? static_cast<std::int64_t>(product) : kLow;
}

// Formats of sums of integers that are scaled: added in a type that holds every sum
// (folds_exactly in tensor/reduce.h).
template <typename T>
struct Exact {
  using Stored = T;
  using FastPath = double;
  static HVD_BOTH double widen(T value) { return static_cast<double>(value); }
  static HVD_BOTH T narrow(double value) { return truncated<T>(value); }
};
template <>
struct Exact<std::int64_t> {
  using Stored = std::int64_t;
  using FastPath = Int128;
  static HVD_BOTH Int128 widen(std::int64_t value) { return value; }
  static HVD_BOTH std::int64_t narrow(Int128 value) { return static_cast<std::int64_t>(value); }
};

// A stored element, scaled and stored again: Row::scale of tensor/kernels.h.
template <typename Format>
HVD_BOTH typename Format::Stored rescaled(typename Format::Stored value, const Ratio& ratio) {
  using Stored = typename Format::Stored;
  if constexpr (std::is_floating_point_v<typename Format::FastPath>) {
    return Format::narrow(scaled(Format::widen(value), ratio));
  } else if constexpr (std::is_same_v<Format, Truth>) {
    return value != 0 && ratio.by / ratio.over != 0.0 ? 1 : 0;
  } else if constexpr (sizeof(Stored) == 8) {
    return static_cast<Stored>(scaled(Int128{static_cast<std::int64_t>(value)}, ratio));
  } else {
    return truncated<Stored>(static_cast<double>(value) * ratio.by / ratio.over);
  }
}

}  // namespace hvd::cuda
