// Threads: their names in ps, top and gdb, and exceptions that end there.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace hvd {

// What an exception ended a thread with, told on that thread.
using Failed = std::function<void(const char* what)>;

// std::thread throws where the system has no more threads; this is an error like any other. No
// exception leaves the thread: it ends, and `failed` is told, again where that has no memory.
Status start_thread(std::thread& into, std::function<void()> body, Failed failed);

// For what needs a little memory while there may be none. False: it ended in exceptions only.
template <typename Body>
bool tried(const Body& body) noexcept {
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      body();
      return true;
    } catch (...) {  // NOLINT(bugprone-empty-catch): once more
    }
  }
  return false;
}

void name_thread(const char* name);  // the calling thread; at most 15 characters are kept
void block_signals();                // the calling thread leaves the signals to the main thread

}  // namespace hvd
