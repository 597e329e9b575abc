// The element types of the core. The numbers are the wire's and Python's (hvd_kernel/tensor.py):
// append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>

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
};
constexpr int kDtypeCount = 11;

std::size_t size_of(Dtype dtype);  // bytes per element
const char* name_of(Dtype dtype);  // Horovod's names: "uint8", "float16", ..., "bfloat16"
bool can_reduce(Dtype dtype);      // uint8 int32 int64 float16 bfloat16 float32 float64 today

}  // namespace hvd
