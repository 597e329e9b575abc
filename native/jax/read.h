// Convert an XLA frame to a call: attributes and buffers.
#pragma once

#include <string>

#include "jax/call.h"

namespace hvd::jax {

// "" or the error.
std::string read(const Frame& frame, Call* call);

// True if the core supports the type.
bool type_of(const Buffer& buffer, DLDataType* type);

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type);

}  // namespace hvd::jax
