#include "tensor/dtype.h"

#include <array>
#include <cstddef>

namespace hvd {

const char* name_of(ReduceOp op) {
  constexpr std::array<const char*, kReduceOpCount> kNames{"Average", "Sum", "Adasum",
                                                           "Min",     "Max", "Product"};
  return kNames.at(static_cast<std::size_t>(op));
}

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
    {"uint8", 1, kOrdered},        {"int8", 1, kOrdered},         {"uint16", 2, kOrdered},
    {"int16", 2, kOrdered},        {"int32", 4, kOrdered},        {"int64", 8, kOrdered},
    {"float16", 2, kReal},         {"float32", 4, kReal},         {"float64", 8, kReal},
    {"bool", 1, kLogical},         {"bfloat16", 2, kReal},        {"complex64", 8, kLinear},
    {"complex128", 16, kLinear},   {"float8_e4m3fn", 1, kNone},   {"float8_e5m2", 1, kNone},
    {"uint32", 4, kNone},          {"uint64", 8, kNone},          {"complex32", 4, kNone},
    {"float8_e4m3fnuz", 1, kNone}, {"float8_e5m2fnuz", 1, kNone}, {"float8_e8m0fnu", 1, kNone},
    {"float8_e3m4", 1, kNone},     {"float8_e4m3", 1, kNone},     {"float8_e4m3b11fnuz", 1, kNone},
}};

const Row& row(Dtype dtype) { return kRows.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(Dtype dtype) { return row(dtype).bytes; }
const char* name_of(Dtype dtype) { return row(dtype).name; }
bool can_reduce(Dtype dtype, ReduceOp op) { return (row(dtype).ops & bit(op)) != 0; }

std::string remedy_of(Dtype dtype, ReduceOp op) {
  if (dtype == Dtype::kBool && op == ReduceOp::kAverage)
    return "cast it to float32 for the share of true, or use Sum (or) and Product (and)";
  if (dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128)
    return "reduce its real and imaginary parts";
  if (dtype == Dtype::kUint32 || dtype == Dtype::kUint64) {
    return op == ReduceOp::kAdasum ? "cast it to float32" : "cast it to int64";
  }
  if (dtype == Dtype::kComplex32 && op != ReduceOp::kAdasum) return "cast it to complex64";
  return "cast it to float32";
}

bool is_integer(Dtype dtype) { return row(dtype).ops == kOrdered; }

}  // namespace hvd
