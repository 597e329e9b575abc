#include "tf/attributes.h"

#include <algorithm>
#include <cstring>

namespace hvd::tf {
namespace {

std::int64_t whole_number(TF_OpKernelConstruction* construction, const char* attribute,
                          std::int64_t otherwise) {
  const Status status;
  std::int64_t value = otherwise;
  tf()->OpKernelConstruction_GetAttrInt64(construction, attribute, &value, status.get());
  return status ? value : otherwise;
}

std::int32_t number(TF_OpKernelConstruction* construction, const char* attribute,
                    std::int32_t otherwise) {
  return static_cast<std::int32_t>(whole_number(construction, attribute, otherwise));
}

// Attributes of TensorFlow's have floats of 32 bits, so a scale travels as the bits of a double.
double scale(TF_OpKernelConstruction* construction, const char* attribute) {
  constexpr std::int64_t kOne = 0x3FF0000000000000;
  const std::int64_t bits = whole_number(construction, attribute, kOne);
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool yes(TF_OpKernelConstruction* construction, const char* attribute) {
  const Status status;
  unsigned char value = 0;
  tf()->OpKernelConstruction_GetAttrBool(construction, attribute, &value, status.get());
  return status && value != 0;
}

bool is_number_of_unfolding(const std::string& part) {
  return part.size() > 1 && part[0] == '_' &&
         std::all_of(part.begin() + 1, part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Attributes::Attributes(TF_OpKernelConstruction* construction)
    : op(number(construction, "reduce_op", HVD_SUM)),
      root(number(construction, "root_rank", 0)),
      set(number(construction, "process_set_id", 0)),
      prescale(scale(construction, "prescale_bits")),
      postscale(scale(construction, "postscale_bits")) {
  const TF_StringView node = tf()->OpKernelConstruction_GetName(construction);
  name = wire_name({node.data, node.len}, yes(construction, "ignore_name_scope"));
}

std::string wire_name(const std::string& node, bool last_part_only) {
  if (last_part_only) return node.substr(node.rfind('/') + 1);  // all of it where there is none
  std::string name;
  for (std::size_t begin = 0; begin <= node.size();) {
    const std::size_t slash = std::min(node.find('/', begin), node.size());
    const std::string part = node.substr(begin, slash - begin);
    if (!is_number_of_unfolding(part)) name += (name.empty() ? "" : "/") + part;
    begin = slash + 1;
  }
  return name;
}

}  // namespace hvd::tf
