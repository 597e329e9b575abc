#include "tensor/dtype.h"

#include <array>

namespace hvd {
namespace {

struct Row {
  const char* name;
  std::size_t bytes;
  bool reduces;
};

constexpr std::array<Row, kDtypeCount> kRows{{
    {"uint8", 1, true},
    {"int8", 1, false},
    {"uint16", 2, false},
    {"int16", 2, false},
    {"int32", 4, true},
    {"int64", 8, true},
    {"float16", 2, true},
    {"float32", 4, true},
    {"float64", 8, true},
    {"bool", 1, false},
    {"bfloat16", 2, true},
}};

const Row& row(Dtype dtype) { return kRows.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(Dtype dtype) { return row(dtype).bytes; }
const char* name_of(Dtype dtype) { return row(dtype).name; }
bool can_reduce(Dtype dtype) { return row(dtype).reduces; }

}  // namespace hvd
