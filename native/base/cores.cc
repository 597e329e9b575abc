#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

namespace hvd {
namespace {

const char* const kMounted = "/sys/fs/cgroup";
const char* const kMountedCpu = "/sys/fs/cgroup/cpu";  // a link, where it has company

// "150000 100000", also over two files; "max" or -1: no quota.
int cores_of(const std::string& quota_and_period) {
  std::istringstream text(quota_and_period);
  long long quota = 0, period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::clamp(quota / period, 1LL, 1'048'576LL));
}

int smaller(int a, int b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

// A cgroup folder and its ancestors up to the mount point. In a container that sees its own cgroup
// as the mounted one, the path is the host's: those folders do not exist.
template <typename CoresIn>
int least_above(const std::string& mounted, std::string path, const CoresIn& cores_in) {
  int least = cores_in(mounted);
  for (; path.size() > 1 && path.front() == '/'; path.resize(path.rfind('/')))
    least = smaller(least, cores_in(mounted + path));
  return least;
}

bool lists_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

std::string content_of(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int cores_of_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const unsigned cores =
      std::thread::hardware_concurrency();  // with more than 1,024 cores the mask is larger
  return cores == 0 ? 1 : static_cast<int>(cores);
}

}  // namespace

// Lines of /proc/self/cgroup: "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
int quota_cores(const ReadFile& read) {
  int least = 0;
  std::istringstream lines(read("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      least = smaller(least, least_above(kMounted, path, [&](const std::string& folder) {
                        return cores_of(read(folder + "/cpu.max"));
                      }));
    } else if (lists_cpu(controllers)) {
      least = smaller(least, least_above(kMountedCpu, path, [&](const std::string& folder) {
                        return cores_of(read(folder + "/cpu.cfs_quota_us") + " " +
                                        read(folder + "/cpu.cfs_period_us"));
                      }));
    }
  }
  return least;
}

int usable_cores() {
  static const int quota = quota_cores(content_of);
  return std::max(1, smaller(cores_of_mask(), quota));
}

}  // namespace hvd
