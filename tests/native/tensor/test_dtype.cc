// The tables of dtypes and operators: the numbers are the wire's and Python's.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/reduce.h"

using namespace hvd;

namespace {

// The dtypes that an operator knows, in the order of their numbers.
std::string reduced_by(ReduceOp op) {
  std::string names;
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    if (can_reduce(dtype, op)) names += std::string(names.empty() ? "" : " ") + name_of(dtype);
  }
  return names;
}

}  // namespace

TEST_CASE("dtype: numbers, sizes and names are the wire's") {
  const std::vector<std::pair<std::string, std::size_t>> rows{
      {"uint8", 1},           {"int8", 1},
      {"uint16", 2},          {"int16", 2},
      {"int32", 4},           {"int64", 8},
      {"float16", 2},         {"float32", 4},
      {"float64", 8},         {"bool", 1},
      {"bfloat16", 2},        {"complex64", 8},
      {"complex128", 16},     {"float8_e4m3fn", 1},
      {"float8_e5m2", 1},     {"uint32", 4},
      {"uint64", 8},          {"complex32", 4},
      {"float8_e4m3fnuz", 1}, {"float8_e5m2fnuz", 1},
      {"float8_e8m0fnu", 1},  {"float8_e3m4", 1},
      {"float8_e4m3", 1},     {"float8_e4m3b11fnuz", 1}};
  REQUIRE(rows.size() == kDtypeCount);
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    CHECK(name_of(dtype) == rows[static_cast<std::size_t>(i)].first);
    CHECK(size_of(dtype) == rows[static_cast<std::size_t>(i)].second);
  }
  View view;
  view.count = 3;
  view.dtype = Dtype::kComplex64;
  CHECK(view.bytes() == 24);
}

TEST_CASE("dtype: which operators a dtype knows") {
  const std::string integers = "uint8 int8 uint16 int16 int32 int64 ";
  const std::string all = integers + "float16 float32 float64 bool bfloat16 complex64 complex128";
  CHECK(reduced_by(ReduceOp::kSum) == all);
  CHECK(reduced_by(ReduceOp::kProduct) == all);
  CHECK(reduced_by(ReduceOp::kAverage) ==
        integers + "float16 float32 float64 bfloat16 complex64 complex128");
  CHECK(reduced_by(ReduceOp::kMin) == integers + "float16 float32 float64 bool bfloat16");
  CHECK(reduced_by(ReduceOp::kMax) == integers + "float16 float32 float64 bool bfloat16");
  CHECK(reduced_by(ReduceOp::kAdasum) == "float16 float32 float64 bfloat16");
}

TEST_CASE("op: numbers and names are Horovod's") {
  const std::vector<std::string> names{"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  REQUIRE(names.size() == kReduceOpCount);
  for (int i = 0; i < kReduceOpCount; ++i)
    CHECK(name_of(static_cast<ReduceOp>(i)) == names[static_cast<std::size_t>(i)]);
}

TEST_CASE("dtype: partial results of 16-bit floats are float32, all others their own") {
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    const bool sixteen = dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16;
    CHECK(wire_dtype(dtype) == (sixteen ? Dtype::kFloat32 : dtype));
  }
}
