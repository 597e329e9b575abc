// DLPack's tensors and the core's: element types, devices, shapes.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "c_api/dlpack.h"
#include "engine/message/request.h"

namespace hvd::c_api {

DLDataType dlpack_type(Dtype dtype);
DLDevice dlpack_device(int device);

// `which` is how an error calls it: "tensor 0 of grad.1".
Result<TensorMeta> meta_of(const DLTensor& tensor, const std::string& which);
void* data_of(const DLTensor& tensor);

}  // namespace hvd::c_api
