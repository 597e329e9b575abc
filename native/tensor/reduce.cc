#include "tensor/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tensor/kernels.h"

namespace hvd {
namespace {

constexpr std::size_t kBlock = 1024;  // elements that fit, as scratch, into the first-level cache

// Real to integer: toward zero, and the nearest end of the range when it does not fit (a plain cast
// would be undefined).
template <typename T>
T truncated(double value) {
  if (!(value > static_cast<double>(std::numeric_limits<T>::min())))
    return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

// An int64 above 2^53 keeps its last digits as long as nobody asks for a fractional factor.
template <typename T>
void scale_integers(T* values, std::size_t count, double factor, double divisor) {
  const bool whole =
      factor == 1.0 && divisor > 1.0 && divisor == static_cast<double>(truncated<T>(divisor));
  if (whole) {
    const T over = static_cast<T>(divisor);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / over);
  } else {
    for (std::size_t i = 0; i < count; ++i)
      values[i] = truncated<T>(static_cast<double>(values[i]) * factor / divisor);
  }
}

// What a dtype is stored as, what it computes in, and the kernels for it.
template <typename T>
struct Native {
  using Stored = T;
  using Wire = T;
  static void scale(T* values, std::size_t count, double factor, double divisor) {
    if (factor == 1.0 && divisor == 1.0) return;
    if constexpr (std::is_same_v<T, float>) {
      kernels().scale_float32(values, count, factor, divisor);
    } else if constexpr (std::is_same_v<T, double>) {
      kernels().scale_float64(values, count, factor, divisor);
    } else {
      scale_integers(values, count, factor, divisor);
    }
  }
  static void add(T* out, const T* a, const T* b, std::size_t count) {
    if constexpr (std::is_same_v<T, float>) {
      kernels().add_float32(out, a, b, count);
    } else if constexpr (std::is_same_v<T, double>) {
      kernels().add_float64(out, a, b, count);
    } else if constexpr (std::is_same_v<T, std::int32_t>) {
      kernels().add_int32(out, a, b, count);
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      kernels().add_int64(out, a, b, count);
    } else {
      kernels().add_uint8(out, a, b, count);
    }
  }
  static void widen(T* out, const T* in, std::size_t count) {
    if (count != 0)
      std::memmove(out, in, count * sizeof(T));  // an empty tensor may have no address
  }
  static void narrow(T* out, const T* in, std::size_t count) {
    if (count != 0)
      std::memmove(out, in, count * sizeof(T));  // an empty tensor may have no address
  }
};

struct HalfBase : Native<float> {};
struct Half : HalfBase {
  using Stored = Float16;
  static void widen(float* out, const Float16* in, std::size_t count) {
    kernels().widen_float16(out, in, count);
  }
  static void narrow(Float16* out, const float* in, std::size_t count) {
    kernels().narrow_float16(out, in, count);
  }
};
struct Brain : HalfBase {
  using Stored = Bfloat16;
  static void widen(float* out, const Bfloat16* in, std::size_t count) {
    kernels().widen_bfloat16(out, in, count);
  }
  static void narrow(Bfloat16* out, const float* in, std::size_t count) {
    kernels().narrow_bfloat16(out, in, count);
  }
};

template <typename D>
constexpr bool kStoredIsWire = std::is_same_v<typename D::Stored, typename D::Wire>;

// The input as it enters the sum: itself when nothing is to be done, else widened and scaled in
// `scratch`.
template <typename D>
const typename D::Wire* prepared(const typename D::Stored* input, typename D::Wire* scratch,
                                 std::size_t count, double before) {
  if constexpr (kStoredIsWire<D>) {
    if (before == 1.0) return input;
  }
  D::widen(scratch, input, count);
  D::scale(scratch, count, before, 1.0);
  return scratch;
}

template <typename D>
void load_blocks(void* wire, const void* input, std::size_t count, double before) {
  auto* const out = static_cast<typename D::Wire*>(wire);
  D::widen(out, static_cast<const typename D::Stored*>(input), count);
  D::scale(out, count, before, 1.0);
}

template <typename D>
void accumulate_blocks(void* wire_out, const void* wire_in, const void* input, std::size_t count,
                       double before) {
  using Wire = typename D::Wire;
  alignas(64) Wire scratch[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    const auto* const in = static_cast<const typename D::Stored*>(input) + at;
    D::add(static_cast<Wire*>(wire_out) + at, static_cast<const Wire*>(wire_in) + at,
           prepared<D>(in, scratch, n, before), n);
  }
}

template <typename D>
void finish_blocks(void* out, void* copy, const void* wire_in, const void* input, std::size_t count,
                   const Scaling& scaling) {
  using Wire = typename D::Wire;
  using Stored = typename D::Stored;
  alignas(64) Wire scratch[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t n = std::min(kBlock, count - at);
    Stored* const target = static_cast<Stored*>(out) + at;
    Wire* sums = scratch;
    if constexpr (kStoredIsWire<D>) sums = target;
    const Wire* const mine =
        prepared<D>(static_cast<const Stored*>(input) + at, scratch, n, scaling.before);
    if (wire_in != nullptr) {
      D::add(sums, static_cast<const Wire*>(wire_in) + at, mine, n);
    } else if (mine != sums) {
      std::memmove(sums, mine, n * sizeof(Wire));
    }
    D::scale(sums, n, scaling.after, scaling.divisor);
    if constexpr (!kStoredIsWire<D>) D::narrow(target, sums, n);
    if (copy != nullptr) std::memcpy(static_cast<Stored*>(copy) + at, target, n * sizeof(Stored));
  }
}

// Calls the lambda with the row that belongs to the dtype. Other dtypes never get here: the engine
// refuses them by name.
template <typename F>
void with_row(Dtype dtype, F&& run) {
  switch (dtype) {
    case Dtype::kUint8:
      return run(Native<std::uint8_t>{});
    case Dtype::kInt32:
      return run(Native<std::int32_t>{});
    case Dtype::kInt64:
      return run(Native<std::int64_t>{});
    case Dtype::kFloat16:
      return run(Half{});
    case Dtype::kBfloat16:
      return run(Brain{});
    case Dtype::kFloat32:
      return run(Native<float>{});
    case Dtype::kFloat64:
      return run(Native<double>{});
    default:
      return;
  }
}

}  // namespace

Dtype wire_dtype(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype;
}

void load(Dtype dtype, void* wire, const void* input, std::size_t count, double before) {
  with_row(dtype, [&](auto row) { load_blocks<decltype(row)>(wire, input, count, before); });
}

void accumulate(Dtype dtype, void* wire_out, const void* wire_in, const void* input,
                std::size_t count, double before) {
  with_row(dtype, [&](auto row) {
    accumulate_blocks<decltype(row)>(wire_out, wire_in, input, count, before);
  });
}

void finish(Dtype dtype, void* out, void* copy, const void* wire_in, const void* input,
            std::size_t count, const Scaling& scaling) {
  with_row(dtype, [&](auto row) {
    finish_blocks<decltype(row)>(out, copy, wire_in, input, count, scaling);
  });
}

void pass_on(void* out, void* copy, const void* in, std::size_t bytes) {
  constexpr std::size_t kBytes = std::size_t{16} << 10U;
  if (bytes == 0) return;
  if (copy == nullptr) {
    std::memcpy(out, in, bytes);
    return;
  }
  for (std::size_t at = 0; at < bytes;
       at += kBytes) {  // the second copy reads from the first-level cache
    const std::size_t n = std::min(kBytes, bytes - at);
    std::memcpy(static_cast<std::byte*>(copy) + at, static_cast<const std::byte*>(in) + at, n);
    std::memcpy(static_cast<std::byte*>(out) + at, static_cast<const std::byte*>(in) + at, n);
  }
}

void scale(Dtype dtype, void* out, const void* input, std::size_t count, const Scaling& scaling) {
  finish(dtype, out, nullptr, nullptr, input, count, scaling);
}

}  // namespace hvd
