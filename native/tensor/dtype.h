// The vocabulary of tensors: reductions, element types, and a view of a tensor. The numbers are
// Horovod's, the wire's and Python's (hvd_kernel/core/tensor.py): append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd {

// The reductions.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,  // a sum, divided by the number of ranks
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5
};
constexpr int kReduceOpCount = 6;

const char* name_of(ReduceOp op);  // "Average", as in hvd.Average

// The element types of the core.
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
  // Moved, never reduced, from here on.
  kFloat8E4m3 = 13,  // torch.float8_e4m3fn
  kFloat8E5m2 = 14,  // torch.float8_e5m2
  kUint32 = 15,
  kUint64 = 16,
  kComplex32 = 17,  // two float16
  kFloat8E4m3fnuz = 18,
  kFloat8E5m2fnuz = 19,
  kFloat8E8m0fnu = 20,
  kFloat8E3m4 = 21,
  kFloat8E4m3Ieee = 22,  // ml_dtypes.float8_e4m3: with infinities
  kFloat8E4m3b11fnuz = 23,
};
constexpr int kDtypeCount = 24;

std::size_t size_of(Dtype dtype);  // bytes per element
const char* name_of(Dtype dtype);  // Horovod's names: "uint8", "float16", ..., "bfloat16"

// Sum, Min, Max, Product: every type that is reduced; complex has no order, so no Min and Max.
// Average: the same as Sum, without bool. Adasum: float16, bfloat16, float32, float64. bool: Sum
// and Max are "or", Product and Min are "and".
bool can_reduce(Dtype dtype, ReduceOp op);
// What to do instead of a reduction that the dtype lacks, for a message: "cast it to int64".
std::string remedy_of(Dtype dtype, ReduceOp op);
// The integers that are reduced: neither bool nor those that are only moved.
bool is_integer(Dtype dtype);

// A tensor is five words: pointer, count, dtype, device, stream. The core knows no
// framework.

constexpr int kCpu = -1;  // device: kCpu, or the ordinal of an accelerator

struct View {
  void* data = nullptr;
  std::int64_t count = 0;  // elements
  Dtype dtype = Dtype::kFloat32;
  int device = kCpu;
  void* stream = nullptr;
  std::int64_t bytes() const { return count * static_cast<std::int64_t>(size_of(dtype)); }
};

}  // namespace hvd
