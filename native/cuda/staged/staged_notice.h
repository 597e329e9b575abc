// Staged fallback, told: what goes through host memory though the group's backend on devices is
// another, which cannot do it.
#pragma once

#include <string>

#include "collective/backend/backend.h"
#include "collective/backend/group.h"

namespace hvd::cuda {

// Any thread. Warns: the first member of a group, once in a process for each sentence. backend: its
// name, as in "the ring".
void tell_staged(const Group& group, const std::string& backend, const Reduction& reduction);

}  // namespace hvd::cuda
