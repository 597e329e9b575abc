// The identities of reductions.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tensor/half.h"
#include "tensor/kernels.h"
#include "tensor/reduce.h"

namespace hvd {
namespace {

// One element, as bytes.
struct Pattern {
  std::byte bytes[16];
};

template <typename... Lanes>
Pattern pattern_of(Lanes... lanes) {
  Pattern pattern{};
  std::size_t at = 0;
  ((std::memcpy(pattern.bytes + at, &lanes, sizeof lanes), at += sizeof lanes), ...);
  return pattern;
}

// Sum, Min, Max, Product, as op_index() counts. -0.0 + x is x for every x, and 0.0 is not.
struct Identities {
  Pattern of[kDistinctOps];
};

template <typename T>
Identities integers() {
  using Limits = std::numeric_limits<T>;
  return {
      {pattern_of(T{0}), pattern_of(Limits::max()), pattern_of(Limits::min()), pattern_of(T{1})}};
}

template <typename T>
Identities floats() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  return {{pattern_of(-T{0}), pattern_of(kInfinity), pattern_of(-kInfinity), pattern_of(T{1})}};
}

template <typename T>
Identities complexes() {
  return {{pattern_of(-T{0}, -T{0}), {}, {}, pattern_of(T{1}, T{0})}};
}

template <typename T>
Identities short_floats(T (*rounded)(float)) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return {{pattern_of(rounded(-0.0F)), pattern_of(rounded(kInfinity)),
           pattern_of(rounded(-kInfinity)), pattern_of(rounded(1.0F))}};
}

Identities truths() {
  const Pattern no = pattern_of(std::uint8_t{0}), yes = pattern_of(std::uint8_t{1});
  return {{no, yes, no, yes}};
}

const Identities& identities(Dtype dtype) {
  // Dtypes behind these are not reduced.
  static const Identities kByDtype[kDtypeCount] = {
      integers<std::uint8_t>(),  integers<std::int8_t>(),
      integers<std::uint16_t>(), integers<std::int16_t>(),
      integers<std::int32_t>(),  integers<std::int64_t>(),
      short_floats(to_float16),  floats<float>(),
      floats<double>(),          truths(),
      short_floats(to_bfloat16), complexes<float>(),
      complexes<double>()};
  return kByDtype[static_cast<std::size_t>(dtype)];
}

}  // namespace

void fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) {
  const Pattern& pattern = identities(dtype).of[op_index(op)];
  const std::size_t bytes = size_of(dtype) * count;
  auto* const to = static_cast<std::byte*>(out);
  if (bytes == 0) return;
  std::memcpy(to, pattern.bytes, size_of(dtype));
  for (std::size_t done = size_of(dtype); done < bytes; done *= 2)
    std::memcpy(to + done, to, std::min(done, bytes - done));
}

}  // namespace hvd
