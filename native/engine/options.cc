#include "engine/options.h"

#include <cerrno>
#include <cstdlib>
#include <limits>

namespace hvd {
namespace {

// Reads one value into the options; false: the text does not fit.
using Setter = bool (*)(const std::string& text, EngineOptions& options);

bool real(const std::string& text, double least, double& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && errno == 0 && value >= least &&
         value <= std::numeric_limits<double>::max();
}

template <typename T>
bool whole(const std::string& text, T& target) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno != 0 || value < 0) return false;
  target = static_cast<T>(value);
  return true;
}

struct Row {
  const char* expects;
  Setter set;
};

const std::map<std::string, Row>& rows() {
  static const std::map<std::string, Row> kRows{
      {"transport",
       {"auto, shm or tcp",
        [](const std::string& text, EngineOptions& options) {
          options.mesh.transport = text;
          return text == "auto" || text == "shm" || text == "tcp";
        }}},
      {"tcp_interface",
       {"an address or interface",
        [](const std::string& text, EngineOptions& options) {
          options.mesh.tcp_interface = text;
          return true;
        }}},
      {"slot_bytes",
       {"a whole number of bytes",
        [](const std::string& text, EngineOptions& options) {
          return whole(text, options.mesh.slot_bytes);
        }}},
      {"slots",
       {"a whole number", [](const std::string& text,
                             EngineOptions& options) { return whole(text, options.mesh.slots); }}},
      {"start_timeout_s",
       {"seconds",
        [](const std::string& text, EngineOptions& options) {
          return real(text, 0, options.mesh.start_timeout_s);
        }}},
      {"fusion_threshold",
       {"a whole number of bytes",
        [](const std::string& text, EngineOptions& options) {
          return whole(text, options.fusion_threshold);
        }}},
      {"cycle_time_ms",
       {"milliseconds",
        [](const std::string& text, EngineOptions& options) {
          double ms = 0;
          if (!real(text, 0, ms) || ms > 60'000) return false;
          options.cycle_time_ns = static_cast<std::int64_t>(ms * 1e6);
          return true;
        }}},
      {"trace_capacity",
       {"a whole number of records, at most 1048576",
        [](const std::string& text, EngineOptions& options) {
          return whole(text, options.trace_capacity) && options.trace_capacity <= (1U << 20U);
        }}},
  };
  return kRows;
}

Status refuse(const std::string& message) {
  return Status::make(Code::kInvalidArgument, message, "engine/options");
}

}  // namespace

Result<EngineOptions> parse_options(const std::map<std::string, std::string>& table) {
  EngineOptions options;
  for (const auto& [key, text] : table) {
    const auto row = rows().find(key);
    if (row == rows().end()) {
      std::string known;
      for (const auto& [name, unused] : rows()) known += (known.empty() ? "" : ", ") + name;
      return refuse("unknown engine option \"" + key + "\"; known are " + known);
    }
    if (!row->second.set(text, options)) {
      return refuse("engine option " + key + "=\"" + text + "\": expected " + row->second.expects);
    }
  }
  return options;
}

}  // namespace hvd
