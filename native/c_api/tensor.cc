#include "c_api/tensor.h"

#include <array>
#include <cstddef>

namespace hvd::c_api {
namespace {

struct Row {
  std::uint8_t code;
  std::uint8_t bits;
};

constexpr std::array<Row, kDtypeCount> kTypes{{
    {kDLUInt, 8},           // kUint8
    {kDLInt, 8},            // kInt8
    {kDLUInt, 16},          // kUint16
    {kDLInt, 16},           // kInt16
    {kDLInt, 32},           // kInt32
    {kDLInt, 64},           // kInt64
    {kDLFloat, 16},         // kFloat16
    {kDLFloat, 32},         // kFloat32
    {kDLFloat, 64},         // kFloat64
    {kDLBool, 8},           // kBool
    {kDLBfloat, 16},        // kBfloat16
    {kDLComplex, 64},       // kComplex64
    {kDLComplex, 128},      // kComplex128
    {kDLFloat8_e4m3fn, 8},  // kFloat8E4m3
    {kDLFloat8_e5m2, 8},    // kFloat8E5m2
    {kDLUInt, 32},          // kUint32
    {kDLUInt, 64},          // kUint64
    {kDLComplex, 32},       // kComplex32
    {kDLFloat8_e4m3fnuz, 8},
    {kDLFloat8_e5m2fnuz, 8},
    {kDLFloat8_e8m0fnu, 8},
    {kDLFloat8_e3m4, 8},
    {kDLFloat8_e4m3, 8},
    {kDLFloat8_e4m3b11fnuz, 8},
}};

Status refuse(const std::string& sentence) {
  return Status::make(Code::kInvalidArgument, sentence, "c_api/tensor");
}

std::string type_text(DLDataType type) {
  constexpr std::array<const char*, 7> kNames{"int",    "uint",    "float", "handle",
                                              "bfloat", "complex", "bool"};
  const std::string bits = std::to_string(type.bits);
  const std::string text = type.code < kNames.size()
                               ? kNames[type.code] + bits
                               : "code " + std::to_string(type.code) + " of " + bits + " bits";
  return type.lanes == 1 ? text : text + " in vectors of " + std::to_string(type.lanes);
}

Result<Dtype> dtype_of(DLDataType type, const std::string& which) {
  if (const auto dtype = known_dtype(type)) return *dtype;
  return refuse(which + " has elements of type " + type_text(type) +
                ", which the core does not know; cast it to another type");
}

Result<int> device_of(DLDevice device, const std::string& which) {
  if (device.device_type == kDLCPU || device.device_type == kDLCUDAHost) return kCpu;
  if (device.device_type == kDLCUDA && device.device_id >= 0) return device.device_id;
  return refuse(which + " is on device " + std::to_string(device.device_id) + " of DLPack's type " +
                std::to_string(device.device_type) +
                ", which the core does not know; copy it to the host");
}

}  // namespace

std::optional<Dtype> known_dtype(DLDataType type) {
  for (std::size_t i = 0; i < kTypes.size() && type.lanes == 1; ++i) {
    if (kTypes[i].code == type.code && kTypes[i].bits == type.bits) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

// Row-major without gaps. Strides of dimensions of one element, and of empty tensors, do not
// matter.
bool contiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  bool without_gaps = true;
  for (std::int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) without_gaps = false;
    expected *= tensor.shape[i];
  }
  return without_gaps;
}

DLDataType dlpack_type(Dtype dtype) {
  const Row& row = kTypes[static_cast<std::size_t>(dtype)];
  return {row.code, row.bits, 1};
}

DLDevice dlpack_device(int device) {
  return device == kCpu ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device};
}

Result<TensorMeta> meta_of(const DLTensor& tensor, const std::string& which) {
  TensorMeta meta;
  const Result<Dtype> dtype = dtype_of(tensor.dtype, which);
  if (!dtype) return dtype.status();
  const Result<int> device = device_of(tensor.device, which);
  if (!device) return device.status();
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr)) {
    return refuse(which + " has " + std::to_string(tensor.ndim) + " dimensions and no shape");
  }
  meta.dtype = dtype.value();
  meta.device = device.value();
  meta.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  if (!meta.countable()) {
    return refuse(which + " has the shape " + shape_text(meta.shape) +
                  ", which is not one that memory can hold");
  }
  if (!contiguous(tensor)) return refuse(which + " is not contiguous; make a contiguous copy");
  return meta;
}

void* data_of(const DLTensor& tensor) {
  if (tensor.data == nullptr) return nullptr;
  return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

}  // namespace hvd::c_api
