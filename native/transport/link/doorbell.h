// Doorbell: what a rank sleeps on. Whoever changes something that the rank may wait for rings its
// doorbell: peers of its host (the words lie in shared memory), the failure detector, the I/O
// threads, its own user threads.
//   progress-lock owner   the one thread of a process that may use the mesh's links and control
//                 channel at present. Only it announces and wakes up again; so a peer makes a
//                 system call only for a rank that sleeps.
// Use:  seen = doorbell.heard();  look for news;  nothing: doorbell.announce(); look once more;
//       doorbell.wait(seen, longest); doorbell.awake();
#pragma once

#include <chrono>

#include "base/failpoint.h"
#include "base/futex.h"

namespace hvd {

// A template over the word, so that the explorer of interleavings (tests/native/explorer) runs this
// very code.
template <class W>
struct BasicDoorbellMemory {
  alignas(64) W rung{0};
  W sleeps{0};
};

template <class W>
class BasicDoorbell {
 public:
  explicit BasicDoorbell(BasicDoorbellMemory<W>& memory) : memory_(memory) {}

  std::uint32_t heard() const { return memory_.rung.load(std::memory_order_seq_cst); }
  // Any thread, any process of this host.
  void ring() {
    if (failpoint("doorbell.before_ring")) return;
    memory_.rung.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t who = memory_.sleeps.load(std::memory_order_seq_cst);
    if (who != 0) futex_wake_all(memory_.rung, who);
  }
  // The progress-lock owner alone. Several threads of a process may sleep on its doorbell: `who`
  // are the bits of those that a ring shall wake.
  void announce(std::uint32_t who = kAnybody) {
    memory_.sleeps.store(who, std::memory_order_seq_cst);
  }
  void awake() { memory_.sleeps.store(0, std::memory_order_relaxed); }
  // Returns at once when the doorbell was rung after `seen`. May return early.
  void wait(std::uint32_t seen, std::chrono::nanoseconds longest, std::uint32_t who = kAnybody) {
    if (heard() == seen) futex_wait(memory_.rung, seen, longest, who);
  }
  // Ends every wait() of `who` in this and other processes, announced or not.
  void wake_waiters(std::uint32_t who = kAnybody) { futex_wake_all(memory_.rung, who); }

 private:
  BasicDoorbellMemory<W>& memory_;
};

using DoorbellMemory = BasicDoorbellMemory<Word>;
using Doorbell = BasicDoorbell<Word>;

}  // namespace hvd
