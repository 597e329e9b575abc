// The settings of one engine, from a table of texts (hvd_kernel/settings/lookup.py is where the
// user's names and defaults are).
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
  // Larger slots mean fewer hand-overs between ranks, and those cost more than leaving the
  // second-level cache: 16 MiB on two ranks took 3.8 ms with slots of 256 KiB, 2.8 ms with 512
  // KiB, 2.2 ms with 1 MiB and with 2 MiB.
  EngineOptions() { mesh.slot_bytes = std::size_t{1} << 20U; }

  MeshOptions mesh;
  AlgorithmOptions algorithms;
  AcceleratorOptions accelerator;
  OpenAccelerator open_accelerator = nullptr;  // tests: instead of the plugin's
  // An operation that a device has not done by then, or whose inputs it has not: the engine ends.
  std::int64_t gpu_timeout_ns = std::int64_t{600} * 1'000'000'000;  // 0: never
  ControllerOptions controller;
  std::size_t trace_capacity = 16384;
  std::string timeline;  // path; empty: none until start_timeline()
  bool mark_cycles = false;
  std::string thread_affinity;  // "0,2,4": the core of each local rank's progress engine thread
  // The largest operation that a waiting user thread carries out itself; larger ones are left to
  // the progress engine thread, so that the user can be interrupted.
  std::int64_t caller_runs_bytes = 4'194'304;
};

// Unknown keys and bad values are invalid arguments that name the key.
HVD_VISIBLE Result<EngineOptions> parse_options(const std::map<std::string, std::string>& table);

}  // namespace hvd
