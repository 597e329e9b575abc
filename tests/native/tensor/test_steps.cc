// One input at a time: prescale, scale, the steps of a ring, and copies.
#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tensor/slot_store.h"
#include "tensor_reference.h"

namespace hvd::test {
namespace {

constexpr std::size_t kCount = 5003;

// Three ranks of a ring: load, accumulate, finish. Expected: the fold of the prescaled inputs.
template <typename T>
void check_ring(const Reduction& reduction, std::size_t count, bool tame) {
  if (folds_exactly(reduction)) return;  // goes by no ring
  std::vector<std::vector<T>> inputs, entered;
  for (std::uint64_t k = 0; k < 3; ++k) inputs.push_back(bits<T>(count, 31 + k, tame));
  for (const auto& input : inputs) {
    entered.emplace_back();
    for (const T& value : input)
      entered.back().push_back(entering(value, reduction.scaling.before));
  }
  const auto expected = expected_fold(reduction, entered);
  std::vector<WireOf<T>> wire(count);
  load(reduction, wire.data(), inputs[0].data(), count);
  accumulate(reduction, wire.data(), wire.data(), inputs[1].data(), count);
  std::vector<T> out(count), copy(count);
  finish(reduction, out.data(), copy.data(), wire.data(), inputs[2].data(), count);
  CHECK(differences(out, expected) == 0);
  CHECK(differences(copy, expected) == 0);
  std::vector<T> in_place = inputs[2];
  finish(reduction, in_place.data(), nullptr, wire.data(), in_place.data(), count);
  CHECK(differences(in_place, expected) == 0);
}

template <typename T>
void check_one_input(const Scaling& scaling, bool tame) {
  const Reduction reduction{Traits<T>::kDtype, ReduceOp::kSum, scaling};
  const auto input = bits<T>(kCount, 8, tame);
  std::vector<T> entered, expected;
  std::vector<WireOf<T>> wire;
  for (const T& value : input) {
    entered.push_back(entering(value, scaling.before));
    wire.push_back(widened(entered.back()));
    expected.push_back(
        narrowed<T>(factored(widened(entered.back()), scaling.after, scaling.divisor)));
  }
  std::vector<T> out(kCount);
  prescale(reduction, out.data(), input.data(), kCount);
  CHECK(differences(out, entered) == 0);
  finalize(reduction, out.data(), wire.data(), kCount);
  CHECK(differences(out, expected) == 0);
  scale(reduction, out.data(), input.data(), kCount);
  CHECK(differences(out, expected) == 0);
  out = input;
  scale(reduction, out.data(), out.data(), kCount);
  CHECK(differences(out, expected) == 0);
}

const std::vector<Scaling>& scalings() {
  static const std::vector<Scaling> kAll{{},           {0.5, 1, 1},   {1.0 / 3, 1, 1}, {1, 3, 1},
                                         {1, 1, 2},    {1, 1, 3},     {0.1, 7, 3},     {1, -2.5, 1},
                                         {1, 1e30, 1}, {-1e18, 1, 1}, {1, 0, 1},       {0, 1, 5}};
  return kAll;
}

}  // namespace

#define HVD_NUMBERS                                                                            \
  std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t, Float16, \
      float, double, Bfloat16, std::complex<float>, std::complex<double>

TEST_CASE_TEMPLATE("steps D4: a ring's three steps are the fold of the prescaled inputs", T,
                   HVD_NUMBERS, Truth) {
  for (const ReduceOp op : all_ops()) {
    if (!can_reduce(Traits<T>::kDtype, op)) continue;
    CAPTURE(name_of(op));
    on_every_kernel([&](const char* name) {
      CAPTURE(name);
      for (const Scaling& scaling : scalings())
        check_ring<T>({Traits<T>::kDtype, op, scaling}, 311, scaling.before != 1.0);
      for (const std::size_t count : {0, 1, 3, 17, 4096, 9001})
        check_ring<T>({Traits<T>::kDtype, op, {0.75, 1.5, 3}}, count, true);
    });
  }
}

TEST_CASE_TEMPLATE("steps: one rank alone, every factor, any bits", T, HVD_NUMBERS) {
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (const Scaling& scaling : scalings()) {
      CAPTURE(scaling.before);
      CAPTURE(scaling.after);
      CAPTURE(scaling.divisor);
      check_one_input<T>(scaling, true);
      check_one_input<T>(scaling, false);
    }
  });
}

TEST_CASE("steps: prescale is rounded to the dtype before anything is added") {
  const Float16 input = to_float16(2050.0F);
  const float by = 0.49975586F;  // the product needs more than a float16's 11 bits
  const Reduction halves{Dtype::kFloat16, ReduceOp::kSum, {static_cast<double>(by), 1, 1}};
  float wire = 0;
  load(halves, &wire, &input, 1);
  CHECK(wire == to_float(to_float16(2050.0F * by)));
  CHECK(wire != 2050.0F * by);
  const std::int32_t three = 3, minus_three = -3;
  const Reduction integers{Dtype::kInt32, ReduceOp::kSum, {0.5, 1, 1}};
  std::int32_t out = 0;
  load(integers, &out, &three, 1);
  accumulate(integers, &out, &out, &three, 1);
  CHECK(out == 2);  // 1 + 1
  load(integers, &out, &minus_three, 1);
  CHECK(out == -1);
}

TEST_CASE("steps: integers wrap around in products, truncate toward zero, saturate when scaled") {
  using Ints = std::vector<std::int32_t>;
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  const Ints a{kMax, -7, 7, 5}, b{2, 1, 1, 2};
  const auto finished = [&](const Scaling& scaling) {
    Ints out(4);
    finish({Dtype::kInt32, ReduceOp::kProduct, scaling}, out.data(), nullptr, a.data(), b.data(),
           4);
    return out;
  };
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    CHECK(finished({}) == Ints{-2, -7, 7, 10});
    CHECK(finished({1, 1, 2}) == Ints{-1, -3, 3, 5});
    CHECK(finished({1, 2.5, 1}) == Ints{-5, -17, 17, 25});
    CHECK(finished({1, -1e9, 1}) == Ints{2000000000, kMax, kMin, kMin});
  });
}

TEST_CASE("fold: sums of integers wrap around, and their means do not") {
  using Bytes = std::vector<std::uint8_t>;
  const Bytes a{200, 250, 255, 7}, b{100, 250, 255, 0};
  const auto folded = [&](ReduceOp op, const Scaling& scaling) {
    Bytes out(4), copy(4);
    void* const copies[] = {copy.data()};
    const void* const inputs[] = {a.data(), b.data()};
    fold({Dtype::kUint8, op, scaling}, out.data(), copies, 1, inputs, 2, 4);
    CHECK(copy == out);
    return out;
  };
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    CHECK(folded(ReduceOp::kSum, {}) == Bytes{44, 244, 254, 7});
    CHECK(folded(ReduceOp::kAverage, {1, 1, 2}) == Bytes{150, 250, 255, 3});
    CHECK(folded(ReduceOp::kSum, {1, 0.5, 1}) == Bytes{150, 250, 255, 3});
    CHECK(folded(ReduceOp::kSum, {1, 2, 1}) == Bytes{255, 255, 255, 14});
  });
}

TEST_CASE("scale: a whole factor keeps the last digit of a large int64, and saturates") {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 53) + 1;
  std::int64_t out = 0;
  prescale({Dtype::kInt64, ReduceOp::kSum, {3, 1, 1}}, &out, &kLarge, 1);
  CHECK(out == 3 * kLarge);
  prescale({Dtype::kInt64, ReduceOp::kSum, {-4096, 1, 1}}, &out, &kLarge, 1);
  CHECK(out == std::numeric_limits<std::int64_t>::min());
}

TEST_CASE("steps: every quotient of a small integer is the integer division's") {
  std::vector<std::int16_t> all(65536), out(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int16_t>(i);
  on_every_kernel([&](const char* name) {
    CAPTURE(name);
    for (const int divisor : {1, 2, 3, 5, 7, 8, 100, 32767}) {
      const Reduction average{
          Dtype::kInt16, ReduceOp::kAverage, {1, 1, static_cast<double>(divisor)}};
      scale(average, out.data(), all.data(), all.size());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < all.size(); ++i) wrong += out[i] != all[i] / divisor ? 1 : 0;
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("steps: a large int64 keeps its last digit in an average") {
  const std::int64_t large = (std::int64_t{1} << 60) + 3;
  std::int64_t out = 0;
  const std::int64_t doubled = 2 * large;
  scale({Dtype::kInt64, ReduceOp::kAverage, {1, 1, 2}}, &out, &doubled, 1);
  CHECK(out == large);
  const std::int64_t tripled = std::numeric_limits<std::int64_t>::max() / 3 * 3;
  scale({Dtype::kInt64, ReduceOp::kAverage, {1, 1, 3}}, &out, &tripled, 1);
  CHECK(out == std::numeric_limits<std::int64_t>::max() / 3);
}

TEST_CASE("steps: an average is a true division, not a product with the reciprocal") {
  std::vector<float> input(1000), out(1000);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i);
  std::size_t told_apart = 0, wrong = 0;
  scale({Dtype::kFloat32, ReduceOp::kAverage, {1, 1, 3}}, out.data(), input.data(), 1000);
  for (std::size_t i = 0; i < input.size(); ++i) {
    wrong += out[i] != input[i] / 3.0F ? 1 : 0;
    told_apart += input[i] / 3.0F != input[i] * (1.0F / 3.0F) ? 1 : 0;
  }
  CHECK(wrong == 0);
  CHECK(told_apart > 100);
}

TEST_CASE("steps: pass_on copies to one place or to two, which may be the source") {
  for (const std::size_t bytes : {0, 1, 63, 8192, 8193, 100'001}) {
    const auto in = bits<std::uint8_t>(bytes, 4, false);
    std::vector<std::uint8_t> out(bytes), copy(bytes);
    pass_on(out.data(), nullptr, in.data(), bytes);
    CHECK(out == in);
    out.assign(bytes, 0);
    pass_on(out.data(), copy.data(), in.data(), bytes);
    CHECK(out == in);
    CHECK(copy == in);
    copy.assign(bytes, 0);
    pass_on(out.data(), copy.data(), out.data(), bytes);
    CHECK(out == in);
    CHECK(copy == in);
  }
}

TEST_CASE("steps D5: pass_on_streaming copies every length at every offset, and no byte more") {
  const auto in = bits<std::uint8_t>(700, 6, false);
  const auto guard = bits<std::uint8_t>(700, 7, false);
  std::size_t wrong = 0;
  for (std::size_t offset = 0; offset < 65; ++offset) {
    for (std::size_t n = 0; n <= 300; ++n) {
      auto out = guard;
      auto expected = guard;
      std::copy_n(in.begin() + 3, n, expected.begin() + static_cast<std::ptrdiff_t>(offset));
      pass_on_streaming(out.data() + offset, in.data() + 3, n);
      wrong += out != expected ? 1 : 0;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("steps D5: SlotStore copies every length, however it writes") {
  const auto in = bits<std::uint8_t>(70000, 8, false);
  SlotStore store;
  for (const std::size_t n : {0U, 1U, 63U, 8191U, 8192U, 8193U, 69999U, 70000U}) {
    std::vector<std::uint8_t> out(in.size() + 1, 0);
    auto expected = out;
    std::copy_n(in.begin(), n, expected.begin());
    store.copy(out.data(), in.data(), n);
    CHECK(out == expected);
  }
}

TEST_CASE(
    "steps: writes are streamed after two slow ones in a row, and tried again after a while") {
  constexpr std::int64_t kSlow = 65536 / 2;  // ns for 65536 bytes: 2 GB/s
  constexpr std::int64_t kQuick = 65536 / 8;
  constexpr std::int64_t kWhile = 10'000'000;
  StoreChoice choice;
  std::int64_t now = 1000;
  CHECK(!choice.streams(now));
  choice.record(65536, kSlow, now);
  CHECK(!choice.streams(now));  // it may have been interrupted
  choice.record(65536, kQuick, now);
  choice.record(65536, kSlow, now);
  CHECK(!choice.streams(now));
  choice.record(65536, kSlow, now);
  CHECK(choice.streams(now));
  CHECK(choice.streams(now + kWhile - 1));
  now += kWhile;
  CHECK(!choice.streams(now));  // one is tried
  choice.record(65536, kSlow, now);
  CHECK(choice.streams(now));
  choice.record(65536, kQuick, now + kWhile);
  CHECK(!choice.streams(now + kWhile));
}

}  // namespace hvd::test
