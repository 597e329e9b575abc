// Terms.
//   link   a one-way first-in-first-out ring of slots from one rank to another. No tags: the
//          coordinator orders everything.
//   slot   a fixed-size piece of memory that the sender fills and the receiver reads. Shared
//          memory: the slot *is* the memory. TCP: a staging buffer that an I/O thread moves.
// A link never copies for its user: acquire a slot, write into it, publish; peek at a slot, read
// from it, release. Waits return the abort's cause as soon as `abort` is raised. One thread per
// end.
#pragma once

#include <cstddef>

#include "base/abort.h"
#include "base/status.h"

namespace hvd {

struct Slot {
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // capacity when acquired, payload when peeked
};

class SendLink {
 public:
  virtual ~SendLink() = default;
  virtual std::size_t slot_bytes() const = 0;  // 64-byte aligned slots
  virtual std::size_t slots() const = 0;       // maximum number published and not yet released
  virtual Result<Slot> acquire(const Abort& abort) = 0;  // waits for a free slot
  virtual void publish(
      std::size_t bytes) = 0;  // release order: the bytes are visible before the slot
};

class RecvLink {
 public:
  virtual ~RecvLink() = default;
  virtual Result<Slot> peek(const Abort& abort) = 0;  // waits for a published slot
  virtual void release() = 0;
};

}  // namespace hvd
