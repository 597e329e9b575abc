// The current engine of this process, which plugins get for each call. A forked child has none: its
// parent's engine is unusable there (engine/engine.cc) and is leaked.
#pragma once

#include <atomic>
#include <memory>

#include "base/visible.h"
#include "c_api/hvd_core.h"
#include "engine/engine.h"

struct hvd_engine {
  std::shared_ptr<hvd::Engine> engine;
  std::atomic<int> count{1};
};

namespace hvd::c_api {

// For the Python extension.
HVD_VISIBLE void make_current(std::shared_ptr<Engine> engine);
// If this engine is current, none is afterwards.
HVD_VISIBLE void resign(const Engine& engine) noexcept;

// For the table; current() and release() also for the extension.
HVD_VISIBLE hvd_engine* current() noexcept;
void make_current(hvd_engine* engine) noexcept;
// The last release ends the engine, which may take a while; within `done` another thread does so,
// because this one may be the engine's.
HVD_VISIBLE void release(hvd_engine* engine) noexcept;

}  // namespace hvd::c_api
