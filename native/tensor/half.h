// The two 16-bit floats as bits. To fp32 is exact; from fp32 rounds to the nearest, ties to even;
// NaN stays NaN (made quiet, the upper payload bits kept), as the F16C instructions do it, so that
// every rank stores the same bytes whatever its machine.
#pragma once

#include <cstdint>
#include <cstring>

namespace hvd {

struct Float16 {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

inline std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float to_float(Bfloat16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16U);
}

inline Bfloat16 to_bfloat16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const std::uint32_t quiet = (bits >> 16U) | 0x40U;
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>(nan ? quiet : rounded)};
}

inline float to_float(Float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
  const std::uint32_t rest = value.bits & 0x7FFFU;
  if (rest >= 0x7C00U) {  // infinity; NaN is made quiet
    const std::uint32_t quiet = rest > 0x7C00U ? 0x400000U : 0U;
    return float_of(sign | 0x7F800000U | quiet | ((rest & 0x3FFU) << 13U));
  }
  // A half's bits, shifted into place, are the value times 2^-112; the product is exact, also for
  // subnormals.
  const float magnitude = float_of(rest << 13U) * float_of(0x77800000U);
  return float_of(sign | bits_of(magnitude));
}

inline Float16 to_float16(float value) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t rest = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (rest > 0x7F800000U) {
    half = 0x7E00U | ((rest >> 13U) & 0x3FFU);
  } else if (rest >= 0x477FF000U) {  // 65520 and above round to infinity
    half = 0x7C00U;
  } else if (rest < 0x38800000U) {  // below 2^-14: adding 0.5 puts the subnormal's bits at the end,
                                    // rounded by the addition
    half = bits_of(float_of(rest) + 0.5F) - bits_of(0.5F);
  } else {
    half = (rest - 0x38000000U + 0xFFFU + ((rest >> 13U) & 1U)) >> 13U;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

}  // namespace hvd
