#include "c_api/start.h"

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "c_api/status.h"
#include "engine/options.h"
#include "transport/bootstrap/bootstrap.h"

namespace hvd::c_api {
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
