// The ring of slots behind every link, over any memory: this process's heap (threads as ranks,
// staging for TCP) or memory shared with another process. One thread sends, one receives.
//   published   number of slots that the sender has filled since the start; only it writes this
//   released    number of slots that the receiver has released; only it writes this
//   sleeps      set by the waiting side before it sleeps on a counter, so that the other side makes
//               a system call only for a sleeping waiter
// Slots are used cyclically. Counters wrap around at 2^32, which need not be a multiple of `count`:
// each side keeps its position separately. The two counters are on separate cache lines, so the
// sides do not disturb each other. Templates over the memory, so that the interleaving explorer
// (tests/native/explorer) runs this code.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/abort.h"
#include "base/failpoint.h"
#include "base/futex.h"
#include "base/status.h"
#include "transport/link/link.h"

namespace hvd {

constexpr std::size_t kMaxSlots = 64;

template <class W>
struct BasicCounter {
  alignas(64) W value{0};
  W sleeps{0};
};
using Counter = BasicCounter<Word>;

struct RingHeader {
  Counter published;
  Counter released;
  alignas(64)
      std::array<std::uint64_t, kMaxSlots> payload{};  // bytes in each slot, valid while published
};

// Call it before the ring is used.
inline void start_counters(RingHeader& header, std::uint32_t first) {
  header.published.value.store(first, std::memory_order_relaxed);
  header.released.value.store(first, std::memory_order_relaxed);
}

// The memory of one ring. Both sides have the same geometry but may map it at different addresses.
struct RingMemory {
  RingHeader* header = nullptr;
  std::byte* slots = nullptr;
  std::size_t slot_bytes = 0;
  std::uint32_t count = 0;

  static std::size_t bytes_for(std::size_t slot_bytes, std::size_t count) {
    return slot_bytes * count;
  }
};

// Wake the waiter of the counter, which then checks its other reasons to stop waiting.
template <class C>
void wake_sleeper(C& counter) {
  if (counter.sleeps.load(std::memory_order_seq_cst) != 0) futex_wake_all(counter.value);
}

// Increment a counter and wake the other side if it has announced a sleep. This side stores the
// counter and then checks for a sleeper; the sleeper announces itself and then checks the counter.
// All four are sequentially consistent, so at least one of the two sees the other.
template <class C>
void advance(C& counter) {
  counter.value.fetch_add(1, std::memory_order_seq_cst);
  wake_sleeper(counter);
}

// The sender's end, nonblocking. The loads are sequentially consistent for callers that announce a
// sleep first and check then (wait_for, the I/O thread).
template <class Memory>
class BasicRingProducer {
 public:
  explicit BasicRingProducer(const Memory& memory)
      : memory_(memory),
        sent_(memory.header->published.value.load(std::memory_order_acquire)),
        released_(sent_) {}

  Slot try_acquire() {  // data is null if every slot is in use
    if (sent_ - released_ == memory_.count) {
      released_ = memory_.header->released.value.load(std::memory_order_seq_cst);
      if (sent_ - released_ == memory_.count) return {};
    }
    return {memory_.slots + place_ * memory_.slot_bytes, memory_.slot_bytes};
  }
  void publish(std::size_t bytes) {
    memory_.header->payload[place_] = bytes;
    place_ = place_ + 1 == memory_.count ? 0 : place_ + 1;
    ++sent_;
    advance(memory_.header->published);
  }
  bool all_released() const {
    return memory_.header->released.value.load(std::memory_order_acquire) == sent_;
  }
  const Memory& memory() const { return memory_; }
  // The word whose change ends the wait for a full ring, and its value while the ring is full.
  auto& awaited() const { return memory_.header->released; }
  std::uint32_t full_at() const { return sent_ - memory_.count; }

 private:
  Memory memory_;
  std::uint32_t place_ = 0;
  std::uint32_t sent_;
  std::uint32_t released_;  // cached: the shared line is read only if this is not enough
};

// The receiver's end, nonblocking.
template <class Memory>
class BasicRingConsumer {
 public:
  explicit BasicRingConsumer(const Memory& memory)
      : memory_(memory),
        received_(memory.header->released.value.load(std::memory_order_acquire)),
        published_(received_) {}

  Slot try_peek() {  // data is null if no slot is published
    if (published_ == received_) {
      published_ = memory_.header->published.value.load(std::memory_order_seq_cst);
      if (published_ == received_) return {};
    }
    return {memory_.slots + place_ * memory_.slot_bytes, memory_.header->payload[place_]};
  }
  void release() {
    place_ = place_ + 1 == memory_.count ? 0 : place_ + 1;
    ++received_;
    advance(memory_.header->released);
  }
  const Memory& memory() const { return memory_; }
  auto& awaited() const { return memory_.header->published; }
  std::uint32_t empty_at() const { return received_; }

 private:
  Memory memory_;
  std::uint32_t place_ = 0;
  std::uint32_t received_;
  std::uint32_t published_;  // cached
};

using RingProducer = BasicRingProducer<RingMemory>;
using RingConsumer = BasicRingConsumer<RingMemory>;

// How a wait may end without a change of its counter.
template <class Flag>
struct BasicWaitRules {
  bool spare_cores = false;     // this host has no more ranks than cores
  const Flag* left = nullptr;   // the peer has sent a goodbye ...
  const Flag* ended = nullptr;  // ... and (where data may still be under way) all that it sent is
                                // in the ring
  int peer = -1;

  bool gone() const {
    return left != nullptr && left->load(std::memory_order_acquire) &&
           (ended == nullptr || ended->load(std::memory_order_acquire));
  }
};
using WaitRules = BasicWaitRules<std::atomic<bool>>;

// Raising the abort or receiving a goodbye wakes the sleepers. Only a thread that is about to sleep
// may miss that, and notices it this much later.
constexpr std::chrono::milliseconds kWaitSlice{10};

bool changed_while_spinning(const Counter& counter, std::uint32_t seen, const Abort& abort,
                            bool spare_cores);
Status has_shut_down(int peer);

// Waits until counter != seen (ok), the abort is raised (its cause) or the peer has left
// (kShutdown).
template <class C, class A, class Flag>
Status wait_for(C& counter, std::uint32_t seen, const A& abort, const BasicWaitRules<Flag>& rules) {
  if (changed_while_spinning(counter, seen, abort, rules.spare_cores)) return Status::ok();
  for (;;) {
    if (counter.value.load(std::memory_order_acquire) != seen) return Status::ok();
    // In this order: a peer that leaves because of an abort sends the abort first.
    const bool peer_gone = rules.gone();
    if (abort.raised()) return abort.cause();
    if (peer_gone) {
      // What it sent before its goodbye has arrived by now.
      if (counter.value.load(std::memory_order_acquire) != seen) return Status::ok();
      return has_shut_down(rules.peer);
    }
    counter.sleeps.store(1, std::memory_order_seq_cst);
    if (counter.value.load(std::memory_order_seq_cst) == seen)
      futex_wait(counter.value, seen, kWaitSlice);
    counter.sleeps.store(0, std::memory_order_relaxed);
  }
}

// The two ends of a SlotRing as blocking links.

class RingSendLink : public SendLink {
 public:
  RingSendLink(const RingMemory& memory, const WaitRules& rules) : ring_(memory), rules_(rules) {}

  std::size_t slot_bytes() const override { return ring_.memory().slot_bytes; }
  std::size_t slots() const override { return ring_.memory().count; }

  Result<Slot> acquire(const Abort& abort) override {
    for (;;) {
      const Slot slot = ring_.try_acquire();
      if (slot.data != nullptr) return slot;
      Status status = wait_for(ring_.awaited(), ring_.full_at(), abort, rules_);
      if (!status) return status;
    }
  }

  Counter& awaited() const { return ring_.awaited(); }
  void publish(std::size_t bytes) override {
    if (failpoint("slot.before_publish")) return;
    ring_.publish(bytes);
    failpoint("slot.after_publish");
  }

 private:
  RingProducer ring_;
  WaitRules rules_;
};

class RingRecvLink : public RecvLink {
 public:
  RingRecvLink(const RingMemory& memory, const WaitRules& rules) : ring_(memory), rules_(rules) {}

  Result<Slot> peek(const Abort& abort) override {
    for (;;) {
      const Slot slot = ring_.try_peek();
      if (slot.data != nullptr) return checked(slot);
      Status status = wait_for(ring_.awaited(), ring_.empty_at(), abort, rules_);
      if (!status) return status;
    }
  }

  Counter& awaited() const { return ring_.awaited(); }
  void release() override {
    if (failpoint("slot.before_release")) return;
    ring_.release();
  }

 private:
  // The length was written by another process: it must not exceed the slot.
  Result<Slot> checked(const Slot& slot) const {
    if (slot.bytes <= ring_.memory().slot_bytes) return slot;
    return Status::make(Code::kInternal,
                        "rank " + std::to_string(rules_.peer) + " published a slot of " +
                            std::to_string(slot.bytes) + " bytes, longer than a slot",
                        "transport/ring_link: peek", rules_.peer);
  }

  RingConsumer ring_;
  WaitRules rules_;
};

}  // namespace hvd
