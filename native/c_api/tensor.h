// Conversion of DLPack tensors to the core's: element types, devices, shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/visible.h"
#include "c_api/dlpack.h"
#include "engine/message/request.h"

namespace hvd::c_api {

HVD_VISIBLE DLDataType dlpack_type(Dtype dtype);
HVD_VISIBLE DLDevice dlpack_device(int device);

// which: the name in errors, "tensor 0 of grad.1".
HVD_VISIBLE Result<TensorMeta> meta_of(const DLTensor& tensor, const std::string& which);
HVD_VISIBLE void* data_of(const DLTensor& tensor);
// nullopt: the core does not support it.
HVD_VISIBLE std::optional<Dtype> known_dtype(DLDataType type);
HVD_VISIBLE bool contiguous(const DLTensor& tensor);

}  // namespace hvd::c_api
