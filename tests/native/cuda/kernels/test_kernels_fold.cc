// Kernels::fold against hvd::fold: the same bits for every dtype and operator, length and place.
#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/kernels/card.h"
#include "tensor/tensor_reference.h"

#define HVD_ALL_DTYPES                                                                         \
  std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t, Float16, \
      float, double, Truth, Bfloat16, std::complex<float>, std::complex<double>

namespace hvd::test {
namespace {

template <typename T>
using Inputs = std::vector<std::vector<T>>;

template <typename T>
Inputs<T> inputs_of(std::size_t n_inputs, std::size_t count, bool tame) {
  Inputs<T> inputs;
  for (std::size_t k = 0; k < n_inputs; ++k) inputs.push_back(bits<T>(count, 41 + k, tame));
  return inputs;
}

template <typename T>
std::vector<T> on_host(const Reduction& reduction, const Inputs<T>& inputs) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  fold(reduction, out.data(), nullptr, 0, pointers.data(), pointers.size(), out.size());
  return out;
}

// offsets: of the inputs, then of the output, in elements.
template <typename T>
std::vector<T> on_card(const Card& card, const Reduction& reduction, const Inputs<T>& inputs,
                       const std::vector<std::size_t>& offsets) {
  std::vector<Placed<T>> group_ranks;
  std::vector<const void*> pointers;
  const std::size_t n = inputs.size();
  for (std::size_t k = 0; k < n; ++k) {
    group_ranks.emplace_back(card, inputs[k], offsets[k % offsets.size()] * sizeof(T));
    pointers.push_back(group_ranks.back().data());
  }
  const Placed<T> out(card, bits<T>(inputs[0].size(), 7, true),
                      offsets[n % offsets.size()] * sizeof(T));
  const Status status =
      card.kernels->fold(card.stream, reduction, out.data(), pointers, inputs[0].size());
  CHECK_MESSAGE(status.is_ok(), status.message);
  return out.values();
}

}  // namespace

TEST_CASE_TEMPLATE("kernels fold: exact for any bits, any number of inputs, every operator", T,
                   HVD_ALL_DTYPES) {
  on_every_card([](const Card& card) {
    for_each_op<T>([&](ReduceOp op) {
      for (const std::size_t n_inputs : {1, 2, 3, 4, 5, 8, 13}) {
        CAPTURE(n_inputs);
        for (const bool tame : {true, false}) {
          const auto inputs = inputs_of<T>(n_inputs, 1021, tame);
          for (const Scaling& scaling : {Scaling{}, Scaling{1.0, 1.0, 3.0}, Scaling{9.0, 2.5, 3.0},
                                         Scaling{1.0, -0.3, 1.0}}) {
            const Reduction reduction{Traits<T>::kDtype, op, scaling};
            CHECK(differences(on_card(card, reduction, inputs, {0}), on_host(reduction, inputs)) ==
                  0);
          }
        }
      }
    });
  });
}

TEST_CASE_TEMPLATE("kernels fold: the maximum number of inputs", T, std::int8_t, Bfloat16, float,
                   std::complex<double>) {
  on_every_card([](const Card& card) {
    const auto inputs = inputs_of<T>(cuda::kMostFolded, 777, true);
    const Reduction reduction{Traits<T>::kDtype, ReduceOp::kAverage, {1.0, 1.0, 64.0}};
    CHECK(differences(on_card(card, reduction, inputs, {1}), on_host(reduction, inputs)) == 0);
  });
}

TEST_CASE_TEMPLATE("kernels fold: every length, nothing written beside it", T, HVD_ALL_DTYPES) {
  constexpr std::size_t kTile = 16384 / sizeof(T);
  on_every_card([&](const Card& card) {
    const auto all = inputs_of<T>(2, 2 * kTile + 1, true);
    std::vector<std::size_t> lengths{kTile - 1, kTile, kTile + 1, 2 * kTile, 2 * kTile + 1};
    for (std::size_t n = 0; n < 70; ++n) lengths.push_back(n);
    for (const std::size_t n : lengths) {
      CAPTURE(n);
      Inputs<T> inputs = all;
      for (auto& input : inputs) input.resize(n);
      const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, {}};
      CHECK(differences(on_card(card, reduction, inputs, {0}), on_host(reduction, inputs)) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("kernels fold: wherever inputs and output lie, alike or not", T,
                   HVD_ALL_DTYPES) {
  constexpr std::size_t kTile = 16384 / sizeof(T);
  on_every_card([](const Card& card) {
    const Reduction reduction{Traits<T>::kDtype, ReduceOp::kProduct, {}};
    for (const std::size_t count : {std::size_t{3}, std::size_t{150}, kTile + 20}) {
      CAPTURE(count);
      const auto inputs = inputs_of<T>(3, count, true);
      const auto expected = on_host(reduction, inputs);
      for (std::size_t offset = 0; offset < 17; ++offset) {
        CAPTURE(offset);
        CHECK(differences(on_card(card, reduction, inputs, {offset}), expected) == 0);
        CHECK(differences(on_card(card, reduction, inputs, {offset, 0, 0, 0}), expected) == 0);
        CHECK(differences(on_card(card, reduction, inputs, {1, 1, 1, offset}), expected) == 0);
      }
    }
  });
}

TEST_CASE_TEMPLATE("kernels fold: the output may be any of the inputs", T, HVD_ALL_DTYPES) {
  on_every_card([](const Card& card) {
    const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, {1.0, 1.0, 3.0}};
    const auto inputs = inputs_of<T>(4, 20'011, true);
    const auto expected = on_host(reduction, inputs);
    for (std::size_t own = 0; own < inputs.size(); ++own) {
      std::vector<Placed<T>> group_ranks;
      std::vector<const void*> pointers;
      for (const auto& input : inputs) {
        group_ranks.emplace_back(card, input, 0);
        pointers.push_back(group_ranks.back().data());
      }
      REQUIRE(
          card.kernels->fold(card.stream, reduction, group_ranks[own].data(), pointers, 20'011));
      for (std::size_t k = 0; k < inputs.size(); ++k)
        CHECK(differences(group_ranks[k].values(), k == own ? expected : inputs[k]) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("kernels fold: one NaN keeps its payload", T, Float16, float, double, Bfloat16) {
  on_every_card([](const Card& card) {
    for_each_op<T>([&](ReduceOp op) {
      for (const std::size_t n_inputs : {1, 2, 3, 6}) {
        auto inputs = inputs_of<T>(n_inputs, 3001, true);
        inputs[n_inputs / 2] = bits<T>(3001, 3, false);  // one NaN per element at most
        const Reduction reduction{Traits<T>::kDtype, op, {1.0, 0.3, 7.0}};
        const auto expected = on_host(reduction, inputs);
        const auto got = on_card(card, reduction, inputs, {0});
        CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0);
      }
    });
  });
}

// Every value before and after each of its kinds: zeros, subnormals, one, infinities, NaN.
TEST_CASE_TEMPLATE("kernels fold: every 16-bit float with every kind of value", T, Float16,
                   Bfloat16) {
  constexpr std::uint32_t kNormal = std::is_same_v<T, Float16> ? 0x0400 : 0x0080;
  constexpr std::uint32_t kInfinity = std::is_same_v<T, Float16> ? 0x7C00 : 0x7F80;
  on_every_card([](const Card& card) {
    std::vector<T> all(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<std::uint16_t>(i);
    for (const std::uint32_t kind : {0U, 0x8000U, 1U, kNormal - 1, kNormal | 0x8000U, kNormal * 9,
                                     kInfinity - 1, kInfinity, kInfinity | 0x8001U, 0x7FFFU}) {
      CAPTURE(kind);
      const std::vector<T> alike(all.size(), T{static_cast<std::uint16_t>(kind)});
      for_each_op<T>([&](ReduceOp op) {
        const Reduction reduction{Traits<T>::kDtype, op, {}};
        for (const Inputs<T>& inputs : {Inputs<T>{all, alike}, Inputs<T>{alike, all}})
          CHECK(differences(on_card(card, reduction, inputs, {0}), on_host(reduction, inputs)) ==
                0);
      });
    }
  });
}

TEST_CASE("kernels fold: products and sums of complex numbers are not contracted") {
  const double a = 1.0 + 0x1p-30, b = 1.0 - 0x1p-30;  // a * b rounds to 1
  using Complex = std::complex<double>;
  on_every_card([&](const Card& card) {
    const Inputs<Complex> inputs{std::vector<Complex>(9, {a, 1.0}),
                                 std::vector<Complex>(9, {b, 1.0})};
    const Reduction reduction{Dtype::kComplex128, ReduceOp::kProduct, {}};
    for (const Complex& product : on_card(card, reduction, inputs, {0})) {
      CHECK(product.real() == 0.0);
      CHECK(product.imag() == a + b);
    }
  });
}

}  // namespace hvd::test
