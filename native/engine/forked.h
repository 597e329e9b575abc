// Is this still the process that made it? After fork() only the calling thread lives on in the
// child: an engine there has no threads, and its memory and sockets are the parent's.
#pragma once

namespace hvd {

// How many forks lie between this process and the first one that asked.
unsigned forks();

}  // namespace hvd
