// Cores that this process may use.
#pragma once

#include <functional>
#include <string>

namespace hvd {

// What the affinity mask and the cgroup's CPU quota allow, not what the machine has; at least one.
int usable_cores();

// What a file says; empty: there is no such file, or it may not be read.
using ReadFile = std::function<std::string(const std::string& path)>;
// The smallest CPU quota of the cgroup that this process is in and of those above it, in whole
// cores (a quota of two and a half is two: a third thread that spins would stop them all), at least
// one; 0: there is none. Both versions: cpu.max, cpu.cfs_quota_us.
int quota_cores(const ReadFile& read);

}  // namespace hvd
