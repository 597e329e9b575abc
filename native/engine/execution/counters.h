// Counters since the engine started; any thread may read them at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/trace.h"

namespace hvd {

struct Counters {
  std::atomic<std::int64_t> ops{0};           // requests executed
  std::atomic<std::int64_t> bytes{0};         // of their tensors on this rank
  std::atomic<std::int64_t> busy_ns{0};       // executing operations on host memory
  std::atomic<std::int64_t> wait_ns{0};       // user threads in wait()
  std::atomic<std::int64_t> on_device_ns{0};  // device time of completed operations
  std::atomic<std::int64_t> exposed_ns{0};    // time that streams of frontends waited for them
  std::atomic<std::int64_t> cycles{0};        // polls that found work
  std::atomic<std::int64_t> cached{0};        // responses that arrived as cache slots
  std::atomic<std::int64_t> fast_paths{0};    // operations agreed on without messages
  std::atomic<std::int64_t> eager{0};         // operations of eager rounds
  std::atomic<std::int64_t> caller_runs{0};   // operations that a waiting user thread executed
};

// Waits of user threads, in the counters and, if long enough to be visible, in the trace.

// Recording shorter waits would slow small calls down.
constexpr std::int64_t kVisibleWaitNs = 20'000;

inline void record_wait(Counters& counters, Trace& trace, std::string_view name,
                        std::int64_t since_ns, std::int64_t until_ns) {
  const std::int64_t waited = until_ns - since_ns;
  counters.wait_ns.fetch_add(waited, std::memory_order_relaxed);
  if (waited >= kVisibleWaitNs) trace.add(since_ns, waited, "WAIT", name, 0);
}

}  // namespace hvd
