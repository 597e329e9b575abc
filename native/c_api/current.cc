#include "c_api/current.h"

#include <pthread.h>

#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace hvd::c_api {
namespace {

// Never destroyed: a plugin's threads may use it while the process exits.
struct CurrentEngine {
  Mutex mutex;
  hvd_engine* engine = nullptr;  // counted
};

CurrentEngine& current_engine() {
  static CurrentEngine& only = [&]() -> CurrentEngine& {
    auto* const made = new CurrentEngine;  // NOLINT(cppcoreguidelines-owning-memory): leaked
    ::pthread_atfork([]() NO_THREAD_SAFETY_ANALYSIS { current_engine().mutex.lock(); },
                     []() NO_THREAD_SAFETY_ANALYSIS { current_engine().mutex.unlock(); },
                     []() NO_THREAD_SAFETY_ANALYSIS {
                       current_engine().engine = nullptr;  // leaked
                       current_engine().mutex.unlock();
                     });
    return *made;
  }();
  return only;
}

void end(hvd_engine* engine) noexcept {
  delete engine;  // NOLINT(cppcoreguidelines-owning-memory): counted
}

void end_elsewhere(hvd_engine* engine) noexcept {
  std::thread thread;
  const bool started = tried([&] {
    const Status status = start_thread(thread, [engine] { end(engine); }, [](const char*) {});
    if (!status) log(Level::kError, "c_api", status.message + "; an engine is never ended");
  });
  if (started && thread.joinable()) thread.detach();
}

}  // namespace

hvd_engine* current() noexcept {
  const MutexLock lock(current_engine().mutex);
  hvd_engine* const engine = current_engine().engine;
  if (engine != nullptr) engine->count.fetch_add(1, std::memory_order_relaxed);
  return engine;
}

void make_current(hvd_engine* engine) noexcept {
  if (engine != nullptr) engine->count.fetch_add(1, std::memory_order_relaxed);
  hvd_engine* before = nullptr;
  {
    const MutexLock lock(current_engine().mutex);
    before = std::exchange(current_engine().engine, engine);
  }
  release(before);
}

void make_current(std::shared_ptr<Engine> engine) {
  auto* const counted = new hvd_engine{std::move(engine)};  // NOLINT: counted
  make_current(counted);
  release(counted);
}

void resign(const Engine& engine) noexcept {
  hvd_engine* before = nullptr;
  {
    const MutexLock lock(current_engine().mutex);
    if (current_engine().engine == nullptr || current_engine().engine->engine.get() != &engine)
      return;
    before = std::exchange(current_engine().engine, nullptr);
  }
  release(before);
}

void release(hvd_engine* engine) noexcept {
  if (engine == nullptr || engine->count.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  if (runs_completion()) return end_elsewhere(engine);
  end(engine);
}

}  // namespace hvd::c_api
