// The ring of slots behind every link, over any memory: this process's heap (threads as ranks,
// staging for TCP) or memory shared with another process. One thread sends, one receives.
//   published   how many slots the sender has filled since the start; only the sender writes it
//   released    how many the receiver has given back; only the receiver writes it
//   sleeps      set by the side that waits for a counter before it sleeps on it, so that nobody
//   makes a system call for a
//               waiter who is not there
// Slots are used round and round. Counters wrap around at 2^32, which need not be a multiple of
// `count`: each side keeps its place apart. The two counters are on cache lines of their own: the
// sides do not disturb each other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/abort.h"
#include "base/futex.h"
#include "base/status.h"
#include "transport/link.h"

namespace hvd {

constexpr std::size_t kMaxSlots = 64;

struct Counter {
  alignas(64) Word value{0};
  Word sleeps{0};
};

struct RingHeader {
  Counter published;
  Counter released;
  alignas(64)
      std::array<std::uint64_t, kMaxSlots> payload{};  // bytes in each slot, valid while published
};

// Where one ring lies. Both sides have the same geometry but may see it at different addresses.
struct RingMemory {
  RingHeader* header = nullptr;
  std::byte* slots = nullptr;
  std::size_t slot_bytes = 0;
  std::uint32_t count = 0;

  static std::size_t bytes_for(std::size_t slot_bytes, std::size_t count) {
    return slot_bytes * count;
  }
};

// The sender's end, without waiting.
class RingProducer {
 public:
  explicit RingProducer(const RingMemory& memory);
  Slot try_acquire();  // data is null when every slot is out
  void publish(std::size_t bytes);
  bool all_released() const;
  const RingMemory& memory() const { return memory_; }
  // The word whose change ends the wait of a full ring, and the value it has while the ring is
  // full.
  Counter& awaited() const { return memory_.header->released; }
  std::uint32_t full_at() const { return sent_ - memory_.count; }

 private:
  RingMemory memory_;
  std::uint32_t place_ = 0;
  std::uint32_t sent_;
  std::uint32_t released_;  // as last seen: the shared line is read only when this is not enough
};

// The receiver's end, without waiting.
class RingConsumer {
 public:
  explicit RingConsumer(const RingMemory& memory);
  Slot try_peek();  // data is null when nothing is there
  void release();
  const RingMemory& memory() const { return memory_; }
  Counter& awaited() const { return memory_.header->published; }
  std::uint32_t empty_at() const { return received_; }

 private:
  RingMemory memory_;
  std::uint32_t place_ = 0;
  std::uint32_t received_;
  std::uint32_t published_;  // as last seen
};

// Moves a counter on by one and wakes the other side if it has announced that it sleeps.
void advance(Counter& counter);

// How a wait may end without its counter moving.
struct WaitRules {
  bool spin = false;  // more cores than ranks: look for some microseconds before sleeping
  const std::atomic<bool>* left = nullptr;  // the peer said goodbye ...
  const std::atomic<bool>* ended =
      nullptr;  // ... and (where data may still be under way) all that it sent is in the ring
  int peer = -1;
};

// Waits until counter != seen (ok), the abort is raised (its cause) or the peer has left
// (kShutdown).
Status wait_for(Counter& counter, std::uint32_t seen, const Abort& abort, const WaitRules& rules);

}  // namespace hvd
