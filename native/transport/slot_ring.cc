#include "transport/slot_ring.h"

#include <chrono>

#include "base/deadline.h"

namespace hvd {
namespace {

constexpr std::chrono::microseconds kSpin{40};
constexpr std::chrono::milliseconds kSlice{10};  // how late, at worst, a sleeper learns of an abort

bool gone(const WaitRules& rules) {
  return rules.left != nullptr && rules.left->load(std::memory_order_acquire) &&
         (rules.ended == nullptr || rules.ended->load(std::memory_order_acquire));
}

bool changed_while_spinning(const Counter& counter, std::uint32_t seen, const Abort& abort) {
  const auto end = Clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (counter.value.load(std::memory_order_acquire) != seen) return true;
      spin_pause();
    }
    if (abort.raised()) return false;
  } while (Clock::now() < end);
  return false;
}

}  // namespace

RingProducer::RingProducer(const RingMemory& memory)
    : memory_(memory),
      sent_(memory.header->published.value.load(std::memory_order_acquire)),
      released_(sent_) {}

RingConsumer::RingConsumer(const RingMemory& memory)
    : memory_(memory),
      received_(memory.header->released.value.load(std::memory_order_acquire)),
      published_(received_) {}

// The loads are sequentially consistent for those who announce a sleep first and look then
// (wait_for, the I/O thread).
Slot RingProducer::try_acquire() {
  if (sent_ - released_ == memory_.count) {
    released_ = memory_.header->released.value.load(std::memory_order_seq_cst);
    if (sent_ - released_ == memory_.count) return {};
  }
  return {memory_.slots + place_ * memory_.slot_bytes, memory_.slot_bytes};
}

void RingProducer::publish(std::size_t bytes) {
  memory_.header->payload[place_] = bytes;
  place_ = place_ + 1 == memory_.count ? 0 : place_ + 1;
  ++sent_;
  advance(memory_.header->published);
}

bool RingProducer::all_released() const {
  return memory_.header->released.value.load(std::memory_order_acquire) == sent_;
}

Slot RingConsumer::try_peek() {
  if (published_ == received_) {
    published_ = memory_.header->published.value.load(std::memory_order_seq_cst);
    if (published_ == received_) return {};
  }
  return {memory_.slots + place_ * memory_.slot_bytes, memory_.header->payload[place_]};
}

void RingConsumer::release() {
  place_ = place_ + 1 == memory_.count ? 0 : place_ + 1;
  ++received_;
  advance(memory_.header->released);
}

// Store the counter, then look for a sleeper; the sleeper announces itself, then looks at the
// counter. All four are sequentially consistent, so at least one of the two sees the other.
void advance(Counter& counter) {
  counter.value.fetch_add(1, std::memory_order_seq_cst);
  if (counter.sleeps.load(std::memory_order_seq_cst) != 0) futex_wake_all(counter.value);
}

Status wait_for(Counter& counter, std::uint32_t seen, const Abort& abort, const WaitRules& rules) {
  if (rules.spin && changed_while_spinning(counter, seen, abort)) return Status::ok();
  for (;;) {
    if (counter.value.load(std::memory_order_acquire) != seen) return Status::ok();
    // In this order: a peer that leaves because of an abort tells of the abort first.
    const bool peer_gone = gone(rules);
    if (abort.raised()) return abort.cause();
    if (peer_gone) {
      // What it sent before its goodbye is there by now.
      if (counter.value.load(std::memory_order_acquire) != seen) return Status::ok();
      return Status::make(
          Code::kShutdown,
          "rank " + std::to_string(rules.peer) + " has shut down while this rank still needs it",
          "transport/slot_ring: wait", rules.peer);
    }
    counter.sleeps.store(1, std::memory_order_seq_cst);
    if (counter.value.load(std::memory_order_seq_cst) == seen)
      futex_wait(counter.value, seen, kSlice);
    counter.sleeps.store(0, std::memory_order_relaxed);
  }
}

}  // namespace hvd
