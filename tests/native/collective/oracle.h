// What a reduction must give, computed the slow way from the rule at the head of backend.h, element
// by element. Single elements are folded with the tensor room's kernels: what these compute is that
// room's test; here it is which inputs meet in which order.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "collective/backend/plan.h"
#include "tensor/half.h"
#include "tensor/reduce.h"

namespace hvd::test {

using Bytes = std::vector<std::byte>;

inline Bytes folded(const Reduction& reduction, const std::vector<const Bytes*>& inputs,
                    std::size_t element) {
  const std::size_t width = size_of(reduction.dtype);
  Bytes out(width);
  std::vector<const void*> row;
  for (const Bytes* input : inputs) row.push_back(input->data() + element * width);
  fold(reduction, out.data(), nullptr, 0, row.data(), row.size(), 1);
  return out;
}

inline std::vector<const Bytes*> pointers(const std::vector<Bytes>& parts) {
  std::vector<const Bytes*> row;
  row.reserve(parts.size());
  for (const Bytes& part : parts) row.push_back(&part);
  return row;
}

// Element `element`, owned by group rank `owner`; hosts: a number per group rank (all 0: one host),
// in rows of this length (0: they form no grid).
inline Bytes reduced_element(const Reduction& reduction, const std::vector<Bytes>& inputs,
                             const std::vector<int>& hosts, int columns, int owner,
                             std::size_t element) {
  const int n = static_cast<int>(inputs.size());
  const auto at = [](int number) { return static_cast<std::size_t>(number); };
  int most = 0;
  for (const int host : hosts) most = std::max(most, host);
  if (most == 0 || folds_exactly(reduction)) {
    std::vector<const Bytes*> rotation;
    for (int step = 1; step <= n; ++step) rotation.push_back(&inputs[at((owner + step) % n)]);
    return folded(reduction, rotation, element);
  }
  const Reduction unscaled{reduction.dtype, reduction.op, {}};
  const auto part_of = [&](int host) {
    std::vector<const Bytes*> members;
    for (int step = 1; step <= n; ++step) {
      if (hosts[at((owner + step) % n)] == host) members.push_back(&inputs[at((owner + step) % n)]);
    }
    return folded(unscaled, members, element);
  };
  const int home = hosts[at(owner)];
  std::vector<Bytes> parts;
  if (columns == 0) {
    for (int turn = 1; turn <= most + 1; ++turn)
      parts.push_back(part_of((home + turn) % (most + 1)));
    return folded(reduction, pointers(parts), 0);
  }
  const int rows = (most + 1) / columns;
  for (int turn = 1; turn <= rows; ++turn) {
    const int first = (home / columns + turn) % rows * columns;
    std::vector<Bytes> of_row;
    for (int step = 1; step <= columns; ++step)
      of_row.push_back(part_of(first + (home % columns + step) % columns));
    parts.push_back(folded(unscaled, pointers(of_row), 0));
  }
  return folded(reduction, pointers(parts), 0);
}

inline int owner_of(const std::vector<std::size_t>& begins, std::size_t element) {
  int owner = 0;
  while (element >= begins[static_cast<std::size_t>(owner) + 1]) ++owner;
  return owner;
}

// begins: where each member's share begins (n + 1).
inline Bytes reduced(const Reduction& reduction, std::vector<Bytes> inputs,
                     const std::vector<int>& hosts, const std::vector<std::size_t>& begins,
                     int columns = 0) {
  const std::size_t width = size_of(reduction.dtype);
  for (Bytes& input : inputs) prescale(reduction, input.data(), input.data(), input.size() / width);
  Bytes out(inputs.front().size());
  for (std::size_t i = 0; i < out.size() / width; ++i) {
    const Bytes one = reduced_element(reduction, inputs, hosts, columns, owner_of(begins, i), i);
    std::memcpy(out.data() + i * width, one.data(), width);
  }
  return out;
}

inline std::vector<std::size_t> even_begins(std::size_t count, std::size_t n) {
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i <= n; ++i) begins.push_back(slice_begin(count, i, n));
  return begins;
}

template <typename T, typename Make>
Bytes filled_with(std::size_t count, const Make& make) {
  std::vector<T> values(count);
  for (T& value : values) value = make();
  Bytes bytes(count * sizeof(T));
  if (count > 0) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Elements without meaning, the same for the same seed; reals are no short binary fractions, so
// that sums depend on their order.
inline Bytes random_elements(Dtype dtype, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto real = [&] { return static_cast<double>(random() % 6001) / 3000.0 - 1.0; };
  switch (dtype) {
    case Dtype::kFloat16:
      return filled_with<Float16>(count, [&] { return to_float16(static_cast<float>(real())); });
    case Dtype::kBfloat16:
      return filled_with<Bfloat16>(count, [&] { return to_bfloat16(static_cast<float>(real())); });
    case Dtype::kFloat32:
    case Dtype::kComplex64:
      return filled_with<float>(count * size_of(dtype) / sizeof(float),
                                [&] { return static_cast<float>(real()); });
    case Dtype::kFloat64:
    case Dtype::kComplex128:
      return filled_with<double>(count * size_of(dtype) / sizeof(double), real);
    case Dtype::kBool:
      return filled_with<std::uint8_t>(
          count, [&] { return static_cast<std::uint8_t>(random() % 5 == 0); });
    default:
      return filled_with<std::uint8_t>(count * size_of(dtype),
                                       [&] { return static_cast<std::uint8_t>(random() % 256); });
  }
}

// A random list of counts, many of them small, some of them 0.
inline std::vector<std::size_t> random_counts(std::uint64_t seed, std::size_t most) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> counts(1 + random() % 9);
  for (std::size_t& count : counts) count = random() % (random() % 3 == 0 ? most : 12);
  return counts;
}

}  // namespace hvd::test
