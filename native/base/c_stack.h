// The C stack of a thread, written at a signal, for a process that does not respond otherwise.
#pragma once

#include "base/status.h"
#include "base/visible.h"

namespace hvd {

constexpr const char* kStackEnd = "end of stack\n";

// Install a handler for this signal: the receiving thread writes its C stack to the descriptor,
// innermost function first, one per line ("libfoo.so(name+0x1f)[0x7f...]"), and then kStackEnd.
// Output that does not fit into a nonblocking pipe is lost. An existing handler (not one with
// SA_SIGINFO) runs first. A second call replaces the descriptor.
HVD_VISIBLE Status write_stack_at(int signal, int descriptor);

}  // namespace hvd
