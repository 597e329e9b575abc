// The shared memory of one host: one sealed memfd that holds the slot rings of every pair of its
// ranks. Nothing has a name, so nothing can be left behind: the memory is gone with the last
// process that maps it. Layout: all ring headers, then all slots, each ring on pages of its own.
// The pages of a ring's slots are claimed by its sender before the first use, so unused rings cost
// nothing and a lack of memory is an error, not a SIGBUS.
#pragma once

#include <cstddef>
#include <memory>

#include "base/fd.h"
#include "base/status.h"
#include "transport/ring_link.h"
#include "transport/slot_ring.h"

namespace hvd {

struct ArenaShape {
  std::size_t ranks = 0;
  std::size_t slot_bytes = 0;
  std::size_t slots = 0;

  std::size_t header_bytes() const;
  std::size_t ring_bytes() const;
  std::size_t bytes() const;
};

class ShmArena {
 public:
  static Result<std::shared_ptr<ShmArena>> create(
      const ArenaShape& shape);  // the first rank of the host
  static Result<std::shared_ptr<ShmArena>> attach(const ArenaShape& shape,
                                                  Fd memory);  // the others
  ~ShmArena();
  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;

  const Fd& fd() const { return memory_; }
  RingMemory ring(std::size_t from, std::size_t to) const;
  Status claim(const RingMemory& ring) const;

 private:
  ShmArena(const ArenaShape& shape, Fd memory, std::byte* base)
      : shape_(shape), memory_(std::move(memory)), base_(base) {}
  static Result<std::shared_ptr<ShmArena>> map(const ArenaShape& shape, Fd memory);

  ArenaShape shape_;
  Fd memory_;
  std::byte* base_;
};

// A sender's link that claims its slots when it is first used.
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

}  // namespace hvd
