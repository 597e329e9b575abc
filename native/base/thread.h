// Threads: names for ps, top and gdb, and a boundary for exceptions.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace hvd {

// Called on a thread that an exception has ended, with the exception's text.
using Failed = std::function<void(const char* what)>;

// Like std::thread, but a lack of threads is an error, not an exception. An exception in the body
// ends the thread and calls `failed`, once more if that call runs out of memory.
Status start_thread(std::thread& into, std::function<void()> body, Failed failed);

// Run a body that needs a little memory, again if it throws. False: every attempt threw.
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
