// Operations of a single rank on its own device.
#pragma once

#include <vector>

#include "collective/backend/plan.h"
#include "cuda/device/device.h"

namespace hvd::cuda {

// On the device's stream: to = from.
Status copy_on(const Device& device, void* to, const void* from, std::size_t bytes);

// On the device's stream: out = round(after * round(before * in) / divisor).
Status scale_on(const Device& device, const std::vector<Operand>& operands,
                const Reduction& reduction);

}  // namespace hvd::cuda
