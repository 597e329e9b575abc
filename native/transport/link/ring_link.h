// The two ends of a SlotRing as blocking links.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/failpoint.h"
#include "transport/link/slot_ring.h"

namespace hvd {

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
