// What a rank that has joined gives changes no result.
#include <doctest/doctest.h>

#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor_reference.h"

namespace hvd::test {
namespace {

template <typename T>
std::vector<T> fold_two(const Reduction& reduction, const std::vector<T>& a,
                        const std::vector<T>& b) {
  std::vector<T> out(a.size());
  const void* const inputs[] = {a.data(), b.data()};
  fold(reduction, out.data(), nullptr, 0, inputs, 2, out.size());
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("identity D4: changes no bit of any value, before it or after it", T,
                   std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t,
                   std::int64_t, Float16, float, double, Truth, Bfloat16, std::complex<float>,
                   std::complex<double>) {
  auto values = bits<T>(20'000, 12, false);
  for (T& value : values)
    if constexpr (std::is_same_v<T, Truth>) value = widened(value);  // stored as 0 or 1
  std::memset(static_cast<void*>(&values[0]), 0, sizeof(T));
  if constexpr (!std::is_integral_v<T> && !std::is_same_v<T, Truth> && !kComplex<T>)
    values[1] = narrowed<T>(-0.0F);
  if constexpr (kComplex<T>) values[1] = -T{};
  for (const ReduceOp op : all_ops()) {
    if (!can_reduce(Traits<T>::kDtype, op)) continue;
    CAPTURE(name_of(op));
    const Reduction reduction{Traits<T>::kDtype, op, {}};
    auto guarded = bits<T>(values.size() + 1, 77, true);
    const T guard = guarded.back();
    fill_identity(Traits<T>::kDtype, op, guarded.data(), values.size());
    CHECK(std::memcmp(&guarded.back(), &guard, sizeof guard) == 0);
    const std::vector<T> identity(guarded.begin(), guarded.end() - 1);
    on_every_kernel([&](const char* name) {
      CAPTURE(name);
      CHECK(differences(fold_two(reduction, values, identity), values) == 0);
      CHECK(differences(fold_two(reduction, identity, values), values) == 0);
    });
  }
}

TEST_CASE("identity: its bits") {
  float one_float = 1;
  fill_identity(Dtype::kFloat32, ReduceOp::kSum, &one_float, 1);
  CHECK(bits_of(one_float) == 0x80000000U);
  fill_identity(Dtype::kFloat32, ReduceOp::kMin, &one_float, 1);
  CHECK(bits_of(one_float) == 0x7F800000U);
  std::int8_t byte = 0;
  fill_identity(Dtype::kInt8, ReduceOp::kMax, &byte, 1);
  CHECK(byte == -128);
  fill_identity(Dtype::kInt8, ReduceOp::kAverage, &byte, 1);
  CHECK(byte == 0);
  fill_identity(Dtype::kInt8, ReduceOp::kSum, nullptr, 0);
}

}  // namespace hvd::test
