// fold() for every dtype and operator: exact values, lengths, places, and the same bits with every
// instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tensor_reference.h"

#define HVD_ALL_DTYPES                                                                         \
  std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t, Float16, \
      float, double, Truth, Bfloat16, std::complex<float>, std::complex<double>

namespace hvd::test {
namespace {

constexpr std::size_t kLongest = 4097;

template <typename T>
std::vector<std::vector<T>> inputs_of(std::size_t n_inputs, std::size_t count, bool tame) {
  std::vector<std::vector<T>> inputs;
  for (std::size_t k = 0; k < n_inputs; ++k) inputs.push_back(bits<T>(count, 17 + k, tame));
  return inputs;
}

template <typename T>
std::vector<const void*> pointers_to(const std::vector<std::vector<T>>& inputs,
                                     std::size_t offset = 0) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data() + offset);
  return pointers;
}

template <typename T>
std::vector<T> folded(const Reduction& reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> out(inputs[0].size());
  const auto pointers = pointers_to(inputs);
  fold(reduction, out.data(), nullptr, 0, pointers.data(), pointers.size(), out.size());
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("fold D4: exact for any bits, any number of inputs, every operator", T,
                   HVD_ALL_DTYPES) {
  for_each_op<T>([](ReduceOp op) {
    on_every_kernel([&](const char* name) {
      CAPTURE(name);
      for (const std::size_t n_inputs : {1, 2, 3, 4, 5, 7, 8, 13}) {
        CAPTURE(n_inputs);
        for (const bool tame : {true, false}) {
          const auto inputs = inputs_of<T>(n_inputs, 1021, tame);
          const Reduction plain{Traits<T>::kDtype, op, {}};
          CHECK(differences(folded(plain, inputs), expected_fold(plain, inputs)) == 0);
          const Reduction scaled{Traits<T>::kDtype, op, {1.0, 2.5, 3.0}};
          CHECK(differences(folded(scaled, inputs), expected_fold(scaled, inputs)) == 0);
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE("fold D5: every length from 0 to 4,097, nothing written beyond it", T,
                   HVD_ALL_DTYPES) {
  for_each_op<T>([](ReduceOp op) {
    const Reduction reduction{Traits<T>::kDtype, op, {}};
    const auto inputs = inputs_of<T>(2, kLongest, true);
    const auto pointers = pointers_to(inputs);
    const auto expected = expected_fold(reduction, inputs);
    const auto guard = bits<T>(kLongest + 1, 99, true);
    on_every_kernel([&](const char* name) {
      CAPTURE(name);
      std::size_t wrong = 0;
      auto out = guard;
      for (std::size_t n = 0; n <= kLongest; ++n) {
        fold(reduction, out.data(), nullptr, 0, pointers.data(), 2, n);
        wrong += std::memcmp(out.data(), expected.data(), n * sizeof(T)) != 0 ? 1 : 0;
        wrong += std::memcmp(&out[n], &guard[n], sizeof(T)) != 0 ? 1 : 0;
      }
      CHECK(wrong == 0);
    });
  });
}

TEST_CASE_TEMPLATE("fold: out and the copies may be any of the inputs", T, HVD_ALL_DTYPES) {
  for_each_op<T>([](ReduceOp op) {
    for (const double divisor : {1.0, 3.0}) {
      const Reduction reduction{Traits<T>::kDtype, op, {1.0, 1.0, divisor}};
      for (const std::size_t n_inputs : {1, 2, 3, 4, 6}) {
        const auto inputs = inputs_of<T>(n_inputs, 20'011, true);
        const auto expected = expected_fold(reduction, inputs);
        for (std::size_t n_copies = 0; n_copies < n_inputs; ++n_copies) {
          auto places = inputs;  // the last is out, the first ones are the copies
          const auto pointers = pointers_to(places);
          std::vector<void*> copies;
          for (std::size_t k = 0; k < n_copies; ++k) copies.push_back(places[k].data());
          fold(reduction, places.back().data(), copies.data(), n_copies, pointers.data(), n_inputs,
               expected.size());
          CHECK(differences(places.back(), expected) == 0);
          for (std::size_t k = 0; k + 1 < n_inputs; ++k)
            CHECK(differences(places[k], k < n_copies ? expected : inputs[k]) == 0);
        }
      }
    }
  });
}

TEST_CASE_TEMPLATE("fold D5: any offset of inputs and outputs gives the same bits", T,
                   HVD_ALL_DTYPES) {
  const auto inputs = inputs_of<T>(4, 700, true);
  const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, {}};
  const auto expected = expected_fold(reduction, inputs);
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (std::size_t offset = 0; offset < 65; ++offset) {
      const std::size_t n = expected.size() - offset;
      const auto pointers = pointers_to(inputs, offset);
      std::vector<T> out(n + 3), copy(n + 1);
      void* const copies[] = {copy.data() + 1};
      fold(reduction, out.data() + 3, copies, 1, pointers.data(), 4, n);
      CHECK(std::memcmp(out.data() + 3, expected.data() + offset, n * sizeof(T)) == 0);
      CHECK(std::memcmp(copy.data() + 1, expected.data() + offset, n * sizeof(T)) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("fold D4: every instruction set gives the same bits, NaN payloads included", T,
                   Float16, float, double, Bfloat16) {
  for_each_op<T>([](ReduceOp op) {
    for (const std::size_t n_inputs : {2, 3, 4, 6}) {
      auto inputs = inputs_of<T>(n_inputs, 3001, true);
      inputs[n_inputs / 2] = bits<T>(3001, 3, false);  // one NaN per element at most
      const Reduction reduction{Traits<T>::kDtype, op, {1.0, 0.3, 7.0}};
      const auto expected = expected_fold(reduction, inputs);
      on_every_kernel([&](const char* name) {
        CAPTURE(name);
        const auto got = folded(reduction, inputs);
        CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0);
      });
    }
  });
}

TEST_CASE("fold D4: Min and Max keep a NaN at any position, and the first of two zeros") {
  const float nan = float_of(0x7FC12345U);
  const std::vector<std::vector<float>> inputs{{nan, 1, 2, -0.0F, 0.0F, INFINITY},
                                               {1, nan, 3, 0.0F, -0.0F, 4},
                                               {2, 3, nan, 1, 1, -INFINITY}};
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    const auto least = folded({Dtype::kFloat32, ReduceOp::kMin, {}}, inputs);
    for (const std::size_t i : {0, 1, 2}) CHECK(bits_of(least[i]) == 0x7FC12345U);
    CHECK(bits_of(least[3]) == bits_of(-0.0F));
    CHECK(bits_of(least[4]) == bits_of(0.0F));
    CHECK(least[5] == -INFINITY);
    const auto most = folded({Dtype::kFloat32, ReduceOp::kMax, {}}, inputs);
    for (const std::size_t i : {0, 1, 2}) CHECK(bits_of(most[i]) == 0x7FC12345U);
    CHECK(most[5] == INFINITY);
  });
}

TEST_CASE("fold D4: subnormals are neither flushed nor rounded away") {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<std::vector<float>> inputs{std::vector<float>(33, tiny),
                                               std::vector<float>(33, 2 * tiny)};
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (const float sum : folded({Dtype::kFloat32, ReduceOp::kSum, {}}, inputs))
      CHECK(bits_of(sum) == 3);
  });
}

TEST_CASE("fold: products and sums of complex numbers are not contracted") {
  const double a = 1.0 + 0x1p-30, b = 1.0 - 0x1p-30;  // a * b rounds to 1
  const std::vector<std::vector<std::complex<double>>> inputs{
      std::vector<std::complex<double>>(9, {a, 1.0}),
      std::vector<std::complex<double>>(9, {b, 1.0})};
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (const auto& product : folded({Dtype::kComplex128, ReduceOp::kProduct, {}}, inputs)) {
      CHECK(product.real() == 0.0);
      CHECK(product.imag() == a + b);
    }
  });
}

TEST_CASE("fold: bytes other than 0 and 1 are true") {
  const std::vector<std::vector<std::uint8_t>> inputs{{0, 2, 0, 255, 1}, {0, 0, 128, 7, 1}};
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax})
      CHECK(folded({Dtype::kBool, op, {}}, inputs) == std::vector<std::uint8_t>{0, 1, 1, 1, 1});
    for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin})
      CHECK(folded({Dtype::kBool, op, {}}, inputs) == std::vector<std::uint8_t>{0, 0, 0, 1, 1});
  });
}

}  // namespace hvd::test
