#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace hvd {
namespace {

// Our own name first, then Horovod's; in capitals or not.
std::string level_asked_for() {
  for (const char* const variable : {"HVD_LOG_LEVEL", "HOROVOD_LOG_LEVEL"}) {
    const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
    if (text == nullptr) continue;
    std::string name = text;
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return name;
  }
  return "warning";
}

Level threshold() {
  const std::string name = level_asked_for();
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
  const std::string line =
      std::string("hvd_kernel ") + name_of(level) + ": " + room + ": " + text + "\n";
  // One write: lines of several ranks on one terminal do not mix. Nothing to do when stderr is
  // gone.
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace hvd
