// The GPU that a program of XLA's runs on, by where its arrays lie: an XLA of FFI version 0.1 does
// not tell.
#pragma once

#include <cstdint>
#include <string>

#include "c_api/hvd_core.h"
#include "jax/foreign.h"

namespace hvd::jax {

// CUDA's cuPointerGetAttribute; 0: it went well.
using PointerAttribute = int (*)(void* value, int attribute, std::uintptr_t pointer);

// Sets the device of the first array that has elements; of none, the first GPU. "" or why not.
std::string device_of(const Frame& frame, DLDevice* device);

// What is asked instead of the driver; nullptr: the driver. For tests.
void ask_instead(PointerAttribute attribute);

}  // namespace hvd::jax
