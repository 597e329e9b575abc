// A frame of XLA's as a call: attributes, and where the buffers lie.
#pragma once

#include <string>

#include "jax/call.h"

namespace hvd::jax {

// "" or why it cannot be read.
std::string read(const Frame& frame, Call* call);

// Whether it is one that the core knows.
bool type_of(const Buffer& buffer, DLDataType* type);

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type);

}  // namespace hvd::jax
