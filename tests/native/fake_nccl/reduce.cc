#include "fake_nccl/reduce.h"

#include <cstdint>
#include <type_traits>

#include "tensor/half.h"

namespace fake_nccl {
namespace {

using hvd::Bfloat16;
using hvd::Float16;
using hvd::cuda::NcclOp;
using hvd::cuda::NcclType;

template <typename T>
T combine(NcclOp op, T a, T b) {
  if constexpr (std::is_same_v<T, Float16>) {
    return hvd::to_float16(combine(op, hvd::to_float(a), hvd::to_float(b)));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return hvd::to_bfloat16(combine(op, hvd::to_float(a), hvd::to_float(b)));
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // integers wrap round
    const std::uint64_t wide_a = static_cast<U>(a), wide_b = static_cast<U>(b);
    if (op == NcclOp::kSum) return static_cast<T>(static_cast<U>(wide_a + wide_b));
    if (op == NcclOp::kProduct) return static_cast<T>(static_cast<U>(wide_a * wide_b));
    return (op == NcclOp::kMax) == (a > b) ? a : b;
  } else {
    if (op == NcclOp::kSum) return a + b;
    if (op == NcclOp::kProduct) return a * b;
    return (op == NcclOp::kMax) == (a > b) ? a : b;
  }
}

template <typename T>
void reduce_all(NcclOp op, void* out, const std::vector<const void*>& inputs, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T result = static_cast<const T*>(inputs[0])[i];
    for (std::size_t rank = 1; rank < inputs.size(); ++rank)
      result = combine(op, result, static_cast<const T*>(inputs[rank])[i]);
    static_cast<T*>(out)[i] = result;
  }
}

}  // namespace

void reduce(NcclType type, NcclOp op, void* out, const std::vector<const void*>& inputs,
            std::size_t count) {
  switch (type) {
    case NcclType::kInt8:
      return reduce_all<std::int8_t>(op, out, inputs, count);
    case NcclType::kUint8:
      return reduce_all<std::uint8_t>(op, out, inputs, count);
    case NcclType::kInt32:
      return reduce_all<std::int32_t>(op, out, inputs, count);
    case NcclType::kUint32:
      return reduce_all<std::uint32_t>(op, out, inputs, count);
    case NcclType::kInt64:
      return reduce_all<std::int64_t>(op, out, inputs, count);
    case NcclType::kUint64:
      return reduce_all<std::uint64_t>(op, out, inputs, count);
    case NcclType::kFloat16:
      return reduce_all<Float16>(op, out, inputs, count);
    case NcclType::kFloat32:
      return reduce_all<float>(op, out, inputs, count);
    case NcclType::kFloat64:
      return reduce_all<double>(op, out, inputs, count);
    case NcclType::kBfloat16:
      return reduce_all<Bfloat16>(op, out, inputs, count);
  }
}

}  // namespace fake_nccl
