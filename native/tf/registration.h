// Our ops and kernels, and their registration with the TensorFlow of this process.
#pragma once

#include <string>

namespace hvd::tf {

// Registers all of them; "", or why nothing, or not all, was registered.
std::string register_all();

}  // namespace hvd::tf
