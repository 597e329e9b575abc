// Terms.
//   link   a one-way first-in-first-out ring of slots from one rank to another. No tags: the
//          coordinator orders everything.
//   slot   a fixed-size piece of memory that the sender fills and the receiver reads. Shared
//          memory: the slot *is* the memory. TCP: a staging buffer that an I/O thread moves.
// A link never copies for its user: acquire a slot, write into it, publish; peek at a slot, read
// from it, release. Waits return the abort's cause as soon as `abort` is raised. One thread per
// end.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

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

// Eager slots: sent before their operation is agreed on (engine/eager). They travel in order among
// the other slots of a link, and are dropped if another operation turns out to be next. A consumer
// of the link never sees an eager slot that was not accepted.

// With more ranks the volume makes negotiating first as fast.
constexpr int kMostEagerRanks = 8;

// The operation of an eager slot.
struct EagerTag {
  std::uint64_t position = 0;  // in the order of operations
  std::uint32_t slot = 0;      // of the response cache
};

struct EagerArrival {
  enum class Kind : std::uint8_t {
    kNothing,
    kEager,
    kOrdinary,  // another slot is next, which belongs to a negotiated operation
    kGone       // the peer has left and no more slots arrive
  };
  Kind kind = Kind::kNothing;
  EagerTag tag;
};

// Progress-lock owner only, interrupt_wait() excepted. None of them blocks, wait() excepted.
class EagerLinks {
 public:
  virtual ~EagerLinks() = default;

  virtual std::size_t most_bytes() const = 0;
  // Memory for the next slot to the peer; nullptr: no room at present.
  virtual std::byte* acquire(int peer) = 0;
  virtual void publish(int peer, const EagerTag& tag, std::size_t bytes) = 0;
  // The next slot of the peer; drops eager slots of earlier positions.
  virtual EagerArrival poll(int peer, std::uint64_t position) = 0;
  // The slot of the last poll() belongs to the next operation: the link returns it like any other.
  virtual void accept(int peer) = 0;

  // Wait for a slot of one of the peers, interrupt_wait(), or `longest`; returns at once if news()
  // is true.
  virtual void wait(const std::vector<int>& peers, const std::function<bool()>& news,
                    std::chrono::nanoseconds longest) = 0;
  // For a caller that does not block here: ring its doorbell once when a slot arrives.
  virtual void watch(const std::vector<int>& peers) = 0;
  // End wait() after the doorbell was rung. Any thread.
  virtual void interrupt_wait() = 0;
};

}  // namespace hvd
