// Counters since the engine started; any thread may read them at any time.
#pragma once

#include <atomic>
#include <cstdint>

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

}  // namespace hvd
