// Warning about operations that are staged through host memory because the group's device backend
// cannot do them.
#pragma once

#include <string>

#include "collective/backend/backend.h"

namespace hvd::cuda {

// Any thread. Only the first member of a group warns, once per process and message. backend: its
// name, as in "the ring".
void warn_staged(const Group& group, const std::string& backend, const Reduction& reduction);

}  // namespace hvd::cuda
