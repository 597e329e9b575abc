#include "tensor/dtype.h"

#include <array>

namespace hvd {
namespace {

// Sets of operators.
constexpr unsigned bit(ReduceOp op) { return 1U << static_cast<unsigned>(op); }
constexpr unsigned kNone = 0;
constexpr unsigned kLinear =
    bit(ReduceOp::kSum) | bit(ReduceOp::kAverage) | bit(ReduceOp::kProduct);
constexpr unsigned kOrdered = kLinear | bit(ReduceOp::kMin) | bit(ReduceOp::kMax);
constexpr unsigned kReal = kOrdered | bit(ReduceOp::kAdasum);
constexpr unsigned kLogical = kOrdered & ~bit(ReduceOp::kAverage);

struct Row {
  const char* name;
  std::size_t bytes;
  unsigned ops;
};

constexpr std::array<Row, kDtypeCount> kRows{{
    {"uint8", 1, kOrdered},
    {"int8", 1, kOrdered},
    {"uint16", 2, kOrdered},
    {"int16", 2, kOrdered},
    {"int32", 4, kOrdered},
    {"int64", 8, kOrdered},
    {"float16", 2, kReal},
    {"float32", 4, kReal},
    {"float64", 8, kReal},
    {"bool", 1, kLogical},
    {"bfloat16", 2, kReal},
    {"complex64", 8, kLinear},
    {"complex128", 16, kLinear},
    {"float8_e4m3fn", 1, kNone},
    {"float8_e5m2", 1, kNone},
}};

const Row& row(Dtype dtype) { return kRows.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(Dtype dtype) { return row(dtype).bytes; }
const char* name_of(Dtype dtype) { return row(dtype).name; }
bool can_reduce(Dtype dtype, ReduceOp op) { return (row(dtype).ops & bit(op)) != 0; }

}  // namespace hvd
