// Stall inspector: requests that some ranks of a set have made and others have not, for too long.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/controller/news.h"

namespace hvd {

// When to check next. Nothing is due while no rank waits.
class StallTimer {
 public:
  void start(std::int64_t at_ns) {
    if (at_ns_ < 0) at_ns_ = at_ns;
  }
  void start_at_latest(std::int64_t at_ns) {
    if (at_ns_ < 0 || at_ns < at_ns_) at_ns_ = at_ns;
  }
  void sleep() { at_ns_ = -1; }
  bool due(std::int64_t now_ns) const { return at_ns_ >= 0 && now_ns >= at_ns_; }
  std::int64_t due_in(std::int64_t now_ns) const {  // negative: never
    return at_ns_ < 0 ? -1 : std::max<std::int64_t>(0, at_ns_ - now_ns);
  }

 private:
  std::int64_t at_ns_ = -1;
};

// The shorter of two waiting times; negative means for ever.
inline std::int64_t sooner(std::int64_t a, std::int64_t b) {
  if (a < 0 || b < 0) return std::max(a, b);
  return std::min(a, b);
}

// Time after which waiting operations are failed; 0: never.
inline std::int64_t shutdown_after(const ControllerOptions& options) {
  const bool sensible = options.stall_shutdown_ns >= options.stall_warning_ns;
  return options.stall_warning_ns > 0 && sensible ? options.stall_shutdown_ns : 0;
}

// Horovod's warning, with the operations, the ranks that wait for them and since when. shutdown_ns:
// operations that wait longer are marked; 0: none.
std::string stall_text(const std::vector<Waiting>& stalled, std::int64_t warning_ns,
                       std::int64_t shutdown_ns, std::int64_t now_ns);

Status stalled(const Waiting& waiting, std::int64_t now_ns);

}  // namespace hvd
