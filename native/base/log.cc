#include "base/log.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

namespace hvd {
namespace {

// The value of our variable, else Horovod's, in lower case. Empty: neither is set.
std::string setting(const char* ours, const char* horovods) {
  for (const char* const variable : {ours, horovods}) {
    const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
    if (text == nullptr || *text == '\0') continue;
    std::string value = text;
    for (char& c : value)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return value;
  }
  return "";
}

// Values other than a word for yes are parsed with strtol, as Horovod does. Not set: no time.
bool shows_time() {
  const std::string hides = setting("HVD_LOG_HIDE_TIME", "HOROVOD_LOG_HIDE_TIME");
  if (hides.empty() || hides == "true" || hides == "yes" || hides == "on") return false;
  return std::strtol(hides.c_str(), nullptr, 10) == 0;
}

// "2026-11-24 02:45:56.123 ", of this machine's time zone.
std::string time_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  std::array<char, 32> day{};
  std::array<char, 64> text{};
  if (::localtime_r(&seconds, &parts) == nullptr) return "";
  std::strftime(day.data(), day.size(), "%Y-%m-%d %H:%M:%S", &parts);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  std::snprintf(text.data(), text.size(), "%s.%03d ", day.data(),
                static_cast<int>(since.count() % 1000));
  return text.data();
}

Level threshold() {
  const std::string name = setting("HVD_LOG_LEVEL", "HOROVOD_LOG_LEVEL");
  if (name == "trace" || name == "debug") return Level::kDebug;
  if (name == "info") return Level::kInfo;
  if (name == "error" || name == "fatal") return Level::kError;
  return Level::kWarning;
}

const char* name_of(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      break;
  }
  return "error";
}

}  // namespace

void log(Level level, const std::string& room, const std::string& text) {
  if (level < threshold()) return;
  const std::string line = (shows_time() ? time_text() : "") + "hvd_kernel " + name_of(level) +
                           ": " + room + ": " + text + "\n";
  // One write, so that lines of several ranks on one terminal do not mix. Errors are ignored:
  // stderr may be closed.
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace hvd
