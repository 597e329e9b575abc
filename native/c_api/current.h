// The engine of this process, as plugins find it at each call.
//
// A forked child has none: its parent's is dead there (engine/forked.h), and is left alone.
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

// Of the extension for Python.
HVD_VISIBLE void make_current(std::shared_ptr<Engine> engine);
// Nothing is current from now on, if this one was.
HVD_VISIBLE void resign(const Engine& engine) noexcept;

// Of the table; current() and release() of the extension too.
HVD_VISIBLE hvd_engine* current() noexcept;
void make_current(hvd_engine* engine) noexcept;
// Whoever gives back the last one ends the engine, which may take a while; within `done` another
// thread does, because this one may be the engine's.
HVD_VISIBLE void release(hvd_engine* engine) noexcept;

}  // namespace hvd::c_api
