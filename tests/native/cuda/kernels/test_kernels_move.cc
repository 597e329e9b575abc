// Kernels::prescale, scale and fill_identity against the host's: the same bits for every dtype,
// length and place.
#include <doctest/doctest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "cuda/kernels/card.h"
#include "tensor/tensor_reference.h"

#define HVD_ALL_DTYPES                                                                         \
  std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t, Float16, \
      float, double, Truth, Bfloat16, std::complex<float>, std::complex<double>

namespace hvd::test {
namespace {

using cuda::Piece;

// What is done to pieces, on the host and on a device.
struct ScalingKernel {
  void (*host)(const Reduction&, void*, const void*, std::size_t);
  Status (cuda::Kernels::*card)(CUstream, const Reduction&, const std::vector<Piece>&);
};
const ScalingKernel kKernels[] = {{prescale, &cuda::Kernels::prescale},
                                  {scale, &cuda::Kernels::scale}};

template <typename T>
std::size_t wrong(const Card& card, const ScalingKernel& kernel, const Reduction& reduction,
                  const std::vector<T>& in, std::size_t in_offset, std::size_t out_offset) {
  std::vector<T> expected(in.size());
  kernel.host(reduction, expected.data(), in.data(), in.size());
  const Placed<T> from(card, in, in_offset * sizeof(T));
  const Placed<T> to(card, bits<T>(in.size(), 3, true), out_offset * sizeof(T));
  REQUIRE(
      (*card.kernels.*kernel.card)(card.stream, reduction, {{from.data(), to.data(), in.size()}}));
  const std::size_t in_wrong = differences(from.values(), in);
  REQUIRE((*card.kernels.*kernel.card)(card.stream, reduction,
                                       {{from.data(), from.data(), in.size()}}));
  return in_wrong + differences(to.values(), expected) + differences(from.values(), expected);
}

}  // namespace

TEST_CASE_TEMPLATE("kernels scale: exact for any bits and factors, in place as well", T,
                   HVD_ALL_DTYPES) {
  const double factors[] = {1.0, 0.5, 3.0, 1.0 / 3, -2.5, 1e300, 1e-40, 0.0, INFINITY, NAN};
  on_every_card([&](const Card& card) {
    for (const bool tame : {true, false}) {
      const auto in = bits<T>(5000, 23, tame);
      for (const ScalingKernel& kernel : kKernels) {
        for (const double factor : factors) {
          CAPTURE(factor);
          for (const Scaling& scaling :
               {Scaling{factor, 1.0, 1.0}, Scaling{1.0, factor, 3.0}, Scaling{0.75, factor, 1.0}}) {
            const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, scaling};
            CHECK(wrong(card, kernel, reduction, in, 0, 0) == 0);
          }
        }
      }
    }
  });
}

TEST_CASE_TEMPLATE("kernels scale: any length, wherever it lies", T, HVD_ALL_DTYPES) {
  constexpr std::size_t kTile = 16384 / sizeof(T);
  on_every_card([](const Card& card) {
    for (const double before : {1.0, 0.5}) {
      const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, {before, 1.0, 1.0}};
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{31}, kTile + 3}) {
        CAPTURE(count);
        const auto in = bits<T>(count, 5, true);
        for (std::size_t offset = 0; offset < 17; ++offset) {
          CAPTURE(offset);
          CHECK(wrong(card, kKernels[0], reduction, in, offset, offset) == 0);
          CHECK(wrong(card, kKernels[0], reduction, in, 0, offset) == 0);
          CHECK(wrong(card, kKernels[0], reduction, in, offset, 1) == 0);
        }
      }
    }
  });
}

TEST_CASE_TEMPLATE("kernels prescale: many pieces, of which some are empty", T, std::uint8_t,
                   Bfloat16, float, double, std::complex<double>) {
  constexpr std::size_t kPieces = 500;
  on_every_card([](const Card& card) {
    for (const double before : {1.0, 1.5}) {
      const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, {before, 1.0, 1.0}};
      std::vector<std::size_t> begins{0};
      for (std::size_t k = 0; k < kPieces; ++k)
        begins.push_back(begins.back() + (k % 97 == 0 ? 9001 + k : k * k % 41));
      const auto in = bits<T>(begins.back(), 29, true);
      std::vector<T> expected(in.size());
      prescale(reduction, expected.data(), in.data(), in.size());
      const Placed<T> from(card, in, 0);
      const Placed<T> to(card, std::vector<T>(in.size()), sizeof(T));
      std::vector<Piece> pieces;
      for (std::size_t k = kPieces; k-- > 0;)
        pieces.push_back(
            {from.data() + begins[k], to.data() + begins[k], begins[k + 1] - begins[k]});
      REQUIRE(card.kernels->prescale(card.stream, reduction, pieces));
      CHECK(differences(to.values(), expected) == 0);
    }
  });
}

TEST_CASE_TEMPLATE("kernels fill_identity: its bits, any length, wherever it lies", T,
                   HVD_ALL_DTYPES) {
  on_every_card([](const Card& card) {
    for (const ReduceOp op : all_ops()) {
      if (!can_reduce(Traits<T>::kDtype, op)) continue;
      CAPTURE(name_of(op));
      for (const std::size_t count : {0, 1, 2, 15, 33, 20'011}) {
        std::vector<T> expected(count);
        fill_identity(Traits<T>::kDtype, op, expected.data(), count);
        for (std::size_t offset = 0; offset < 17; ++offset) {
          const Placed<T> out(card, bits<T>(count, 3, true), offset * sizeof(T));
          REQUIRE(
              card.kernels->fill_identity(card.stream, Traits<T>::kDtype, op, out.data(), count));
          const auto got = out.values();
          const bool same =
              count == 0 || std::memcmp(got.data(), expected.data(), count * sizeof(T)) == 0;
          CHECK(same);
        }
      }
    }
  });
}

TEST_CASE("kernels prescale: float8 is moved") {
  on_every_card([](const Card& card) {
    const auto in = bits<std::uint8_t>(1001, 9, false);
    const Placed<std::uint8_t> from(card, in, 0), to(card, bits<std::uint8_t>(1001, 1, false), 3);
    const Reduction reduction{Dtype::kFloat8E5m2, ReduceOp::kSum, {}};
    REQUIRE(card.kernels->prescale(card.stream, reduction, {{from.data(), to.data(), 1001}}));
    CHECK(to.values() == in);
  });
}

}  // namespace hvd::test
