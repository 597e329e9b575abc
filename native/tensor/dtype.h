// The element types of the core. The numbers are the wire's and Python's
// (hvd_kernel/core/tensor.py): append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/op.h"

namespace hvd {

enum class Dtype : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
  kComplex64 = 11,
  kComplex128 = 12,
  kFloat8E4m3 = 13,  // torch.float8_e4m3fn: moved, never reduced
  kFloat8E5m2 = 14,  // torch.float8_e5m2: moved, never reduced
};
constexpr int kDtypeCount = 15;

std::size_t size_of(Dtype dtype);  // bytes per element
const char* name_of(Dtype dtype);  // Horovod's names: "uint8", "float16", ..., "bfloat16"

// Sum, Min, Max, Product: every type but float8; complex has no order, so no Min and Max. Average:
// the same as Sum, without bool. Adasum: float16, bfloat16, float32, float64. bool: Sum and Max are
// "or", Product and Min are "and".
bool can_reduce(Dtype dtype, ReduceOp op);

}  // namespace hvd
