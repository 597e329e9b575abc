// The C stack of a thread, written at a signal: where a process is that does nothing else any more.
#pragma once

#include "base/status.h"
#include "base/visible.h"

namespace hvd {

constexpr const char* kStackEnd = "end of stack\n";

// At this signal the thread that takes it writes the C functions that it is in to the descriptor,
// innermost first, one in a line ("libfoo.so(name+0x1f)[0x7f...]"), and then kStackEnd. What does
// not fit a pipe that does not block is lost. A handler that is there already (not one with
// SA_SIGINFO) runs before. Once more: to another descriptor.
HVD_VISIBLE Status write_stack_at(int signal, int descriptor);

}  // namespace hvd
