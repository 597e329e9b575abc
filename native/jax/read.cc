#include "jax/read.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace hvd::jax {
namespace {

// XLA's numbers (PrimitiveType).
constexpr std::array<plugin::Type, 23> kTypes{{{1, {kDLBool, 8, 1}},
                                               {2, {kDLInt, 8, 1}},
                                               {3, {kDLInt, 16, 1}},
                                               {4, {kDLInt, 32, 1}},
                                               {5, {kDLInt, 64, 1}},
                                               {6, {kDLUInt, 8, 1}},
                                               {7, {kDLUInt, 16, 1}},
                                               {10, {kDLFloat, 16, 1}},
                                               {11, {kDLFloat, 32, 1}},
                                               {12, {kDLFloat, 64, 1}},
                                               {15, {kDLComplex, 64, 1}},
                                               {16, {kDLBfloat, 16, 1}},
                                               {18, {kDLComplex, 128, 1}},
                                               {19, {kDLFloat8_e5m2, 8, 1}},
                                               {20, {kDLFloat8_e4m3fn, 8, 1}},
                                               {8, {kDLUInt, 32, 1}},
                                               {9, {kDLUInt, 64, 1}},
                                               {23, {kDLFloat8_e4m3b11fnuz, 8, 1}},
                                               {24, {kDLFloat8_e5m2fnuz, 8, 1}},
                                               {25, {kDLFloat8_e4m3fnuz, 8, 1}},
                                               {28, {kDLFloat8_e4m3, 8, 1}},
                                               {29, {kDLFloat8_e3m4, 8, 1}},
                                               {33, {kDLFloat8_e8m0fnu, 8, 1}}}};
constexpr std::int32_t kInt32 = 4, kFloat64 = 12;

struct Numbers {
  const char* name;
  std::int32_t Call::* place;
};
constexpr std::array<Numbers, 8> kNumbers{{{"kind", &Call::kind},
                                           {"set", &Call::set},
                                           {"op", &Call::op},
                                           {"root", &Call::root},
                                           {"size", &Call::traced_size},
                                           {"only", &Call::only},
                                           {"step", &Call::step},
                                           {"samples", &Call::samples}}};

void read_scalar(const std::string& name, const Scalar& scalar, Call* call) {
  if (scalar.type == kFloat64) {
    double* const place = name == "prescale"    ? &call->prescale
                          : name == "postscale" ? &call->postscale
                                                : nullptr;
    if (place != nullptr) std::memcpy(place, scalar.value, sizeof(double));
  }
  if (scalar.type != kInt32) return;
  for (const Numbers& each : kNumbers) {
    if (name == each.name) std::memcpy(&(call->*each.place), scalar.value, sizeof(std::int32_t));
  }
}

void read_attributes(const Attributes& attributes, Call* call) {
  for (std::int64_t i = 0; i < attributes.count; ++i) {
    const std::string name(attributes.names[i]->data, attributes.names[i]->length);
    if (attributes.kinds[i] == kScalarAttribute)
      read_scalar(name, *static_cast<const Scalar*>(attributes.values[i]), call);
    if (attributes.kinds[i] == kTextAttribute && name == "name") {
      const auto* const text = static_cast<const Text*>(attributes.values[i]);
      call->name.assign(text->data, text->length);
    }
  }
}

std::vector<std::int64_t> shape_of(const Buffer& buffer) {
  return {buffer.dims, buffer.dims + buffer.rank};
}

}  // namespace

bool type_of(const Buffer& buffer, DLDataType* type) {
  return plugin::dlpack_type(kTypes, buffer.type, type);
}

std::string read(const Frame& frame, Call* call) {
  read_attributes(frame.attributes, call);
  for (std::int64_t i = 0; i < frame.inputs.count; ++i) {
    const Buffer& buffer = *frame.inputs.all[i];
    if (!type_of(buffer, &call->types.emplace_back()))
      return call->name + ": arrays of XLA's type " + std::to_string(buffer.type) +
             " cannot be sent to other ranks; use astype(...)";
    call->shapes.push_back(shape_of(buffer));
    call->data.push_back(buffer.data);
  }
  // One per operand; hvd_kernel/jax/primitive.py may add one without elements.
  for (std::int64_t i = 0; i < std::min(frame.inputs.count, frame.outputs.count); ++i) {
    const Buffer& buffer = *frame.outputs.all[i];
    call->output_shapes.push_back(shape_of(buffer));
    call->output_data.push_back(buffer.data);
    if (buffer.data == frame.inputs.all[i]->data) count(&counters.aliased);
  }
  return "";
}

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type) {
  std::size_t product = type.bits / 8U;
  for (const std::int64_t extent : shape) product *= static_cast<std::size_t>(extent);
  return product;
}

}  // namespace hvd::jax
