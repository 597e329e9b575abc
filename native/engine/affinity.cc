#include "engine/affinity.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace hvd {

Result<int> core_of(const std::string& list, int local_rank) {
  std::size_t at = 0;
  for (int rank = 0; at < list.size(); ++rank) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string one = list.substr(at, comma - at);
    char* end = nullptr;
    const long core = std::strtol(one.c_str(), &end, 10);
    if (one.empty() || *end != '\0' || core < 0 || core >= CPU_SETSIZE) {
      return Status::make(Code::kInvalidArgument,
                          "\"" + list + "\" is not a list of cores like 0,1,2", "engine/affinity");
    }
    if (rank == local_rank) return static_cast<int>(core);
    at = comma + 1;
  }
  return -1;
}

void pin_thread(const std::string& list, const Topology& topology) {
  if (list.empty()) return;
  const Result<int> core = core_of(list, topology.local_rank);
  if (!core) return log(Level::kWarning, "engine", core.status().message);
  const std::string rank = "local rank " + std::to_string(topology.local_rank);
  if (core.value() < 0) {
    return log(Level::kWarning, "engine",
               "thread affinity \"" + list + "\" names no core for " + rank);
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core.value()), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    log(Level::kWarning, "engine",
        "cannot run " + rank + " on core " + std::to_string(core.value()) + ": " +
            std::strerror(errno));  // NOLINT(concurrency-mt-unsafe): glibc's is safe
  }
}

}  // namespace hvd
