// Rare messages for the operator, one line each on stderr; never an answer to the user (that is a
// Status).
#pragma once

#include <string>

namespace hvd {

enum class Level { kDebug, kInfo, kWarning, kError };

// Shown from the level that HOROVOD_LOG_LEVEL names (default: warning), behind the time where
// HOROVOD_LOG_HIDE_TIME is there and says no. Any thread.
void log(Level level, const std::string& room, const std::string& text);

}  // namespace hvd
