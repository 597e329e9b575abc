// Sharing of memory by the ranks of one host. Its first rank creates the memory and sends
// descriptors over the sockets that the failure detector owns afterwards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/shm/shared_heap.h"
#include "transport/shm/shm_arena.h"

namespace hvd {

// The reason why this rank has no shared memory, sent to all ranks; "": it has.
struct ArenaPlan {
  std::shared_ptr<ShmArena> made;  // on the host's first rank
  std::string missing;
};
// The first rank creates the arena; the other ranks check whether they have the address space.
ArenaPlan plan_arena(const ArenaShape& shape, bool first);

// One host: its ranks in order, and this rank's sockets to them.
struct HostSockets {
  int rank = 0;
  std::vector<int> ranks;
  std::vector<const Fd*> sockets;  // parallel to `ranks`; nullptr for this rank
  Deadline deadline;
};

Result<std::shared_ptr<ShmArena>> share_arena(const HostSockets& host, const ArenaShape& shape,
                                              std::shared_ptr<ShmArena> made);

// nullptr on every rank of the host if one of them cannot have it, which is not an error.
Result<std::shared_ptr<SharedHeap>> share_heap(const HostSockets& host, std::size_t bytes);

}  // namespace hvd
