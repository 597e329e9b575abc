// Places where a test makes this process fail. HVD_FAILPOINT="name:action@n[;...]" arms them when
// the process starts; tests arm single ranks through their environments.
//   action   kill (SIGKILL to itself), stop (SIGSTOP), throw (std::runtime_error), fail (the place
//            returns an error of its own kind), delay=MS
//   n        at the n-th passage, counted from 1; without @n at every one
// Unarmed, a failpoint is one load of a flag that never changes.
#pragma once

#include <atomic>

namespace hvd {

extern std::atomic<bool> failpoints_armed;
[[gnu::cold]] bool failpoint_reached(const char* name);
// Arms from a text as above; an empty text disarms. Unknown actions are ignored with a log line.
void arm_failpoints(const char* text);
// Number of passages of an armed failpoint, so that a test can wait for one.
long failpoint_passages(const char* name);

// Returns true if the place must fail.
inline bool failpoint(const char* name) {
  return failpoints_armed.load(std::memory_order_relaxed) && failpoint_reached(name);
}

}  // namespace hvd
