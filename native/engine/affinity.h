// Affinity of a local rank's background thread (HOROVOD_THREAD_AFFINITY).
#pragma once

#include <string>

#include "base/status.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// The core of a local rank from "0,2,4"; -1: none is named. Not a list of numbers:
// kInvalidArgument.
Result<int> core_of(const std::string& list, int local_rank);

// The calling thread. What cannot be done is a warning, not an error.
void pin_thread(const std::string& list, const Topology& topology);

}  // namespace hvd
