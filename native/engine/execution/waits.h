// Waits of user threads, in the counters and, if long enough to be visible, in the trace.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/trace.h"
#include "engine/execution/counters.h"

namespace hvd {

// Recording shorter waits would slow small calls down.
constexpr std::int64_t kVisibleWaitNs = 20'000;

inline void record_wait(Counters& counters, Trace& trace, std::string_view name,
                        std::int64_t since_ns, std::int64_t until_ns) {
  const std::int64_t waited = until_ns - since_ns;
  counters.wait_ns.fetch_add(waited, std::memory_order_relaxed);
  if (waited >= kVisibleWaitNs) trace.add(since_ns, waited, "WAIT", name, 0);
}

}  // namespace hvd
