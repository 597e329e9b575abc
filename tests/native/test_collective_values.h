// What a collective must give, computed the slow way from the rule in collective/backend/backend.h:
// element i of a tensor lies in slice o; its sum is ((x_{o+1} + x_{o+2}) + ...) + x_o, one rounding
// per addition, in float for 16-bit numbers, which are rounded once more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "collective/backend/plan.h"
#include "tensor/dtype.h"
#include "tensor/half.h"

namespace hvd::test {

template <typename T>
struct KindOf;
template <>
struct KindOf<std::uint8_t> {
  static constexpr Dtype kDtype = Dtype::kUint8;
};
template <>
struct KindOf<std::int8_t> {
  static constexpr Dtype kDtype = Dtype::kInt8;
};
template <>
struct KindOf<std::uint16_t> {
  static constexpr Dtype kDtype = Dtype::kUint16;
};
template <>
struct KindOf<std::int16_t> {
  static constexpr Dtype kDtype = Dtype::kInt16;
};
template <>
struct KindOf<std::int32_t> {
  static constexpr Dtype kDtype = Dtype::kInt32;
};
template <>
struct KindOf<std::int64_t> {
  static constexpr Dtype kDtype = Dtype::kInt64;
};
template <>
struct KindOf<float> {
  static constexpr Dtype kDtype = Dtype::kFloat32;
};
template <>
struct KindOf<double> {
  static constexpr Dtype kDtype = Dtype::kFloat64;
};
template <>
struct KindOf<Float16> {
  static constexpr Dtype kDtype = Dtype::kFloat16;
};
template <>
struct KindOf<Bfloat16> {
  static constexpr Dtype kDtype = Dtype::kBfloat16;
};

template <typename T>
constexpr bool kSixteenBit = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

template <typename T>
T of_real(double value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// No two ranks, tensors or places alike; thirds, so that float sums depend on their order.
template <typename T>
T value_at(int rank, std::size_t tensor, std::size_t index) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(rank) * 7919 + tensor * 104729 + index * 31 + 17) % 3001;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(mixed % 50);
  return of_real<T>((static_cast<double>(mixed) - 1500.0) / 3.0);
}

template <typename T>
std::vector<T> input_of(int rank, std::size_t tensor, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_at<T>(rank, tensor, i);
  return values;
}

inline int slice_of(std::size_t index, std::size_t count, int size) {
  int slice = 0;
  while (index >=
         slice_begin(count, static_cast<std::size_t>(slice) + 1, static_cast<std::size_t>(size))) {
    ++slice;
  }
  return slice;
}

template <typename T>
T expected_sum(int size, std::size_t tensor, std::size_t index, std::size_t count,
               bool average = false) {
  const int first = slice_of(index, count, size) + 1;
  const auto input = [&](int step) { return value_at<T>((first + step) % size, tensor, index); };
  if constexpr (kSixteenBit<T>) {
    float sum = to_float(input(0));
    for (int step = 1; step < size; ++step) sum = sum + to_float(input(step));
    if (average) sum = sum / static_cast<float>(size);
    return of_real<T>(static_cast<double>(sum));
  } else if constexpr (std::is_integral_v<T>) {
    std::int64_t sum = input(0);
    for (int step = 1; step < size; ++step) sum += input(step);
    return static_cast<T>(average ? sum / size : sum);
  } else {
    T sum = input(0);
    for (int step = 1; step < size; ++step) sum = sum + input(step);
    return average ? sum / static_cast<T>(size) : sum;
  }
}

template <typename T>
std::vector<T> expected_sums(int size, std::size_t tensor, std::size_t count,
                             bool average = false) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = expected_sum<T>(size, tensor, i, count, average);
  }
  return values;
}

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace hvd::test
