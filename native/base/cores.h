// Cores that this process may use.
#pragma once

#include <functional>
#include <string>

namespace hvd {

// Number of cores by the affinity mask and the cgroup's CPU quota, not of the machine; at least
// one.
int usable_cores();

// The contents of a file; empty: it does not exist or is not readable.
using ReadFile = std::function<std::string(const std::string& path)>;
// The smallest CPU quota of this process's cgroup and its ancestors, in whole cores (a quota of 2.5
// counts as two: a third spinning thread would throttle all of them), at least one; 0: no quota.
// Both versions: cpu.max, cpu.cfs_quota_us.
int quota_cores(const ReadFile& read);

}  // namespace hvd
