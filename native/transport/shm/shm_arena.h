// The shared memory of one host: one sealed memfd with the doorbells of its ranks, their fast path,
// their control rings and the slot rings of every pair. Nothing has a name, so nothing can be left
// behind: the memory is freed with the last process that maps it. Layout: all headers, then the
// bytes of the control rings, then all slots, each ring on pages of its own. Ranks are numbered by
// their position on the host. Headers and control rings are claimed when the arena is created, the
// pages of a ring's slots by its sender before the first use; so unused rings cost nothing and a
// lack of memory is an error, not a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/link/doorbell.h"
#include "transport/link/slot_ring.h"
#include "transport/shm/control_ring.h"
#include "transport/shm/fast_path.h"
#include "transport/shm/shared_heap.h"

namespace hvd {

struct ArenaShape {
  std::size_t ranks = 0;
  std::size_t slot_bytes = 0;
  std::size_t slots = 0;
  std::uint32_t first_count = 0;  // initial value of the counters of all rings

  std::size_t header_bytes() const;
  std::size_t ring_bytes() const;
  std::size_t bytes() const;

 private:
  friend class ShmArena;
  std::size_t fast_path_at() const;
  std::size_t control_headers_at() const;
  std::size_t ring_headers_at() const;
  std::size_t fast_path_data_at() const;
  std::size_t slots_at() const;
};

std::size_t whole_pages(std::size_t bytes);
// Seal the size, so that no process can shrink the memory of the others or remove the seal.
bool seal(const Fd& memory);
bool sealed(const Fd& memory);

// The control rings of a rank and its parent in the tree.
enum class Direction : std::uint8_t { kUp, kDown };

class ShmArena {
 public:
  // The first rank of the host.
  static Result<std::shared_ptr<ShmArena>> create(const ArenaShape& shape);
  // The other ranks.
  static Result<std::shared_ptr<ShmArena>> attach(const ArenaShape& shape, Fd memory);
  ~ShmArena();
  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;

  const Fd& fd() const { return memory_; }
  DoorbellMemory& doorbell(std::size_t rank) const;
  FastPathMemory fast_path() const;
  FastPathData fast_path_data() const;
  ControlMemory control(std::size_t child, Direction direction) const;
  RingMemory ring(std::size_t from, std::size_t to) const;
  Status claim(const RingMemory& ring) const;

 private:
  ShmArena(const ArenaShape& shape, Fd memory, std::byte* base)
      : shape_(shape), memory_(std::move(memory)), base_(base) {}
  static Result<std::shared_ptr<ShmArena>> map(const ArenaShape& shape, Fd memory);
  void make_headers() const;

  ArenaShape shape_;
  Fd memory_;
  std::byte* base_;
};

// A sender's link that claims its slots at the first use.
class ShmSendLink : public RingSendLink {
 public:
  ShmSendLink(std::shared_ptr<ShmArena> arena, const RingMemory& ring, const WaitRules& rules)
      : RingSendLink(ring, rules), arena_(std::move(arena)), ring_(ring) {}
  Result<Slot> acquire(const Abort& abort) override;

 private:
  std::shared_ptr<ShmArena> arena_;
  RingMemory ring_;
  bool claimed_ = false;
};

// Sharing of memory by the ranks of one host. Its first rank creates the memory and sends
// descriptors over the sockets that the failure detector owns afterwards.

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
