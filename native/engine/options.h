// The settings of one engine, from a table of texts (hvd_kernel/config.py is where the user's names
// and defaults are).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "transport/mesh.h"

namespace hvd {

struct EngineOptions {
  // Larger slots mean fewer hand-overs between ranks, and those cost more than leaving the
  // second-level cache: 16 MiB on two ranks took 3.8 ms with slots of 256 KiB, 2.8 ms with 512
  // KiB, 2.2 ms with 1 MiB and with 2 MiB.
  EngineOptions() { mesh.slot_bytes = std::size_t{1} << 20U; }

  MeshOptions mesh;
  std::int64_t fusion_threshold = std::int64_t{128} * 1024 * 1024;  // bytes; 0: no fusion
  std::int64_t cycle_time_ns = 0;  // the longest time a small tensor may wait for company
  std::size_t trace_capacity = 16384;
};

// Unknown keys and bad values are invalid arguments that name the key.
Result<EngineOptions> parse_options(const std::map<std::string, std::string>& table);

}  // namespace hvd
