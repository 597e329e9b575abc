// Sums since the engine started; read by anybody at any time.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd {

struct Counters {
  std::atomic<std::int64_t> ops{0};           // requests carried out
  std::atomic<std::int64_t> bytes{0};         // of their tensors on this rank
  std::atomic<std::int64_t> busy_ns{0};       // carrying out operations on host memory
  std::atomic<std::int64_t> wait_ns{0};       // user threads in wait()
  std::atomic<std::int64_t> on_device_ns{0};  // devices, with operations that have been done
  std::atomic<std::int64_t> exposed_ns{0};    // streams of frontends that stood still for them
  std::atomic<std::int64_t> cycles{0};        // looks that found something to do
  std::atomic<std::int64_t> cached{0};        // responses that came as numbers of the cache
  std::atomic<std::int64_t> fast_paths{0};    // operations agreed on without a message
  std::atomic<std::int64_t> eager{0};         // operations whose data came beforehand
  std::atomic<std::int64_t> caller_runs{0};   // operations that a waiting user thread carried out
};

}  // namespace hvd
