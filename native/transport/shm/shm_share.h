// Sharing of memory by the ranks of one host. Its first rank makes it and passes descriptors
// over the failure detector's sockets, before the failure detector has them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/shared_heap.h"
#include "transport/shm/shm_arena.h"

namespace hvd {

// Why this rank has no shared memory, told to all ranks: "" where it has.
struct ArenaPlan {
  std::shared_ptr<ShmArena> made;  // on the host's first rank
  std::string missing;
};
// The first rank makes the arena, the others look whether they have the address space for it.
ArenaPlan plan_arena(const ArenaShape& shape, bool first);

// One host: its ranks in order, and this rank's sockets to them.
struct HostSockets {
  int rank = 0;
  std::vector<int> ranks;
  std::vector<const Fd*> sockets;  // beside `ranks`; null for this rank itself
  Deadline deadline;
};

Result<std::shared_ptr<ShmArena>> share_arena(const HostSockets& host, const ArenaShape& shape,
                                              std::shared_ptr<ShmArena> made);

// Null on every rank of the host when one of them cannot have it: that is no error.
Result<std::shared_ptr<SharedHeap>> share_heap(const HostSockets& host, std::size_t bytes);

}  // namespace hvd
