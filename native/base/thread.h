// Threads: their names in ps, top and gdb, and how many cores there are for them.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace hvd {

// std::thread throws where the system has no more threads; this is an error like any other.
Status start_thread(std::thread& into, std::function<void()> body);

void name_thread(const char* name);  // the calling thread; at most 15 characters are kept
void block_signals();                // the calling thread leaves the signals to the main thread
int usable_cores();                  // what the affinity mask allows, not what the machine has

}  // namespace hvd
