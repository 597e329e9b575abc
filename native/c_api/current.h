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

// An engine for a program without Python.
hvd_engine* start(std::int32_t rank, std::int32_t size, hvd_exchange exchange, void* context,
                  const char* const* names, const char* const* values, std::size_t options_count,
                  char* text, std::size_t text_size) noexcept;

}  // namespace hvd::c_api
