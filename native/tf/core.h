// The core's C table as kernels use it, and tensors and errors in the words of both sides.
#pragma once

#include <cstdint>
#include <string>

#include "c_api/hvd_core.h"
#include "c_api/plugin.h"
#include "tf/foreign.h"

namespace hvd::tf {

using plugin::core;
using plugin::Engine;
using plugin::view;

// An element type of TensorFlow (its number, as in types.proto) in DLPack's words.
bool dlpack_type(int tensorflow_type, DLDataType* type);
std::size_t bytes_of(const DLDataType& type);

// What the core says of a failure, as TensorFlow's status. The text ends with the class of
// hvd_kernel.errors and the rank, "[hvd_kernel.errors.RankDied, rank 2]", by which
// hvd_kernel/tensorflow/library.py finds it again.
Status failure(std::int32_t code, const std::string& text, std::int32_t rank = -1);
Status not_initialized();

}  // namespace hvd::tf
