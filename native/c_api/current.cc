#include "c_api/current.h"

#include <pthread.h>

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "c_api/status.h"
#include "engine/options.h"
#include "transport/bootstrap/bootstrap.h"

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

namespace {

// A bootstrap that calls a C function.
class Exchanged final : public Bootstrap {
 public:
  Exchanged(hvd_exchange exchange, void* context, std::size_t size)
      : exchange_(exchange), context_(context), size_(size) {}

  Result<std::vector<std::string>> allgather(const std::string& mine) override {
    std::vector<const void*> all(size_);
    std::vector<std::size_t> sizes(size_);
    std::array<char, 512> text{};
    const std::int32_t failed = exchange_(context_, mine.data(), mine.size(), all.data(),
                                          sizes.data(), text.data(), text.size());
    text.back() = '\0';
    if (failed != 0) {
      const std::string why = text.data();
      return Status::make(Code::kUnavailable, why.empty() ? "the exchange failed" : why,
                          "c_api/start");
    }
    std::vector<std::string> answers;
    for (std::size_t i = 0; i < size_; ++i) {
      const auto* const bytes = static_cast<const char*>(all[i]);
      answers.emplace_back(bytes == nullptr ? "" : bytes, bytes == nullptr ? 0 : sizes[i]);
    }
    return answers;
  }

 private:
  const hvd_exchange exchange_;
  void* const context_;
  const std::size_t size_;
};

Result<std::unique_ptr<Engine>> started(int rank, int size, hvd_exchange exchange, void* context,
                                        const std::map<std::string, std::string>& table) {
  if (size < 1 || rank < 0 || rank >= size || exchange == nullptr) {
    return Status::make(Code::kInvalidArgument,
                        "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                            " ranks cannot be started: a rank is below their number, and an "
                            "exchange is needed",
                        "c_api/start");
  }
  const Result<EngineOptions> options = parse_options(table);
  if (!options) return options.status();
  Exchanged bootstrap(exchange, context, static_cast<std::size_t>(size));
  return Engine::start(rank, size, bootstrap, options.value());
}

}  // namespace

hvd_engine* start(std::int32_t rank, std::int32_t size, hvd_exchange exchange, void* context,
                  const char* const* names, const char* const* values, std::size_t options_count,
                  char* text, std::size_t text_size) noexcept {
  std::unique_ptr<hvd_engine> engine;
  guarded(text, text_size, [&] {
    std::map<std::string, std::string> table;
    for (std::size_t i = 0; i < options_count; ++i) table.emplace(names[i], values[i]);
    auto counted = std::make_unique<hvd_engine>();
    Result<std::unique_ptr<Engine>> made = started(rank, size, exchange, context, table);
    if (!made) return made.status();
    counted->engine = made.take();
    engine = std::move(counted);
    return Status::ok();
  });
  return engine.release();
}

}  // namespace hvd::c_api
