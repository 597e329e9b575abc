// The current contexts of this thread, the latest last.
#pragma once

#include <cuda.h>

#include <vector>

namespace fake {

std::vector<CUcontext>& current_contexts();

}  // namespace fake
