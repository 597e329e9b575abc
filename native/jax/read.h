// A frame of XLA's as a call: attributes, and where the buffers lie.
#pragma once

#include <string>

#include "jax/call.h"

namespace hvd::jax {

// "" or why it cannot be read.
std::string read(const Frame& frame, Call* call);

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type);

}  // namespace hvd::jax
