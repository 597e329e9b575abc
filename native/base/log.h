// Log: rare messages for the operator, one line each on stderr. Errors for the caller are a Status
// instead.
#pragma once

#include <string>

namespace hvd {

enum class Level { kDebug, kInfo, kWarning, kError };

// Shown at or above HOROVOD_LOG_LEVEL (default: warning), with the time if HOROVOD_LOG_HIDE_TIME is
// set to false. Any thread.
void log(Level level, const std::string& room, const std::string& text);

}  // namespace hvd
