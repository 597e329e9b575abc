// The settings of one engine, from a table of texts (hvd_kernel/settings/lookup.py has the user's
// names and the defaults).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "base/visible.h"
#include "collective/accelerator.h"
#include "collective/select.h"
#include "engine/controller/controller.h"
#include "transport/mesh/mesh.h"

namespace hvd {

struct EngineOptions {
  // Larger slots mean fewer exchanges between ranks, which cost more than exceeding the
  // second-level cache: 16 MiB on two ranks took 3.8 ms with slots of 256 KiB, 2.8 ms with 512
  // KiB, 2.2 ms with 1 MiB and with 2 MiB.
  EngineOptions() { mesh.slot_bytes = std::size_t{1} << 20U; }

  MeshOptions mesh;
  AlgorithmOptions algorithms;
  AcceleratorOptions accelerator;
  OpenAccelerator open_accelerator = nullptr;  // for tests: replaces the plugin's
  // Time limit of an operation on a device, or of its inputs; then the engine ends.
  std::int64_t gpu_timeout_ns = std::int64_t{600} * 1'000'000'000;  // 0: never
  ControllerOptions controller;
  std::size_t trace_capacity = 16384;
  std::string timeline;  // path; empty: off until start_timeline()
  bool mark_cycles = false;
  std::string thread_affinity;  // "0,2,4": the core of each local rank's progress engine thread
  // The largest operation that a waiting user thread executes; the background thread executes
  // larger ones, so that the user can interrupt the wait.
  std::int64_t caller_runs_bytes = 4'194'304;
};

// Unknown keys and invalid values return kInvalidArgument with the key.
HVD_VISIBLE Result<EngineOptions> parse_options(const std::map<std::string, std::string>& table);

}  // namespace hvd
