// Places where a test makes this process fail. HVD_FAILPOINT="name:action@n[;...]" arms them when
// the process starts; rank-specific arming is the test's business (each rank has its environment).
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
// How often somebody has come by one that is armed, so that a test can wait for it.
long failpoint_passages(const char* name);

// True: the place shall fail.
inline bool failpoint(const char* name) {
  return failpoints_armed.load(std::memory_order_relaxed) && failpoint_reached(name);
}

}  // namespace hvd
