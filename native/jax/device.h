// The GPU of an XLA program, found by the addresses of its arrays, because XLA's FFI version 0.1
// does not provide it.
#pragma once

#include <cstdint>
#include <string>

#include "c_api/hvd_core.h"
#include "jax/foreign.h"

namespace hvd::jax {

// CUDA's cuPointerGetAttribute; 0: success.
using PointerAttribute = int (*)(void* value, int attribute, std::uintptr_t pointer);

// Set the device of the first array that has elements, or the first GPU. Returns "" or the error.
std::string device_of(const Frame& frame, DLDevice* device);

// For tests: replace the driver's function; nullptr: the driver.
void replace_driver(PointerAttribute attribute);

}  // namespace hvd::jax
