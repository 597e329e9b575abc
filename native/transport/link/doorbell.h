// Doorbell: the word that a rank sleeps on. Every thread that changes something that the rank may
// wait for rings its doorbell: peers of its host (the words are in shared memory), the failure
// detector, the I/O threads, its own user threads.
//   progress-lock owner   the only thread of a process that may use the mesh's links and control
//                 channel at present. Only this thread announces a sleep and withdraws it, so a
//                 peer makes a system call only for a rank that sleeps.
// Use:  seen = doorbell.heard();  poll;  nothing: doorbell.announce();  poll again;
//       doorbell.wait(seen, longest); doorbell.awake();
#pragma once

#include <chrono>

#include "base/failpoint.h"
#include "base/futex.h"

namespace hvd {

// A template over the word, so that the interleaving explorer (tests/native/explorer) runs this
// code.
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
    const std::uint32_t threads = memory_.sleeps.load(std::memory_order_seq_cst);
    if (threads != 0) futex_wake_all(memory_.rung, threads);
  }
  // Progress-lock owner only. Several threads of a process may sleep on its doorbell: `threads` are
  // the bits of those that a ring wakes.
  void announce(std::uint32_t threads = kAnyWaiter) {
    memory_.sleeps.store(threads, std::memory_order_seq_cst);
  }
  void awake() { memory_.sleeps.store(0, std::memory_order_relaxed); }
  // Returns at once if the doorbell was rung after `seen`. May return early.
  void wait(std::uint32_t seen, std::chrono::nanoseconds longest,
            std::uint32_t threads = kAnyWaiter) {
    if (heard() == seen) futex_wait(memory_.rung, seen, longest, threads);
  }
  // Ends every wait() of `threads` in this and other processes, announced or not.
  void wake_waiters(std::uint32_t threads = kAnyWaiter) { futex_wake_all(memory_.rung, threads); }

 private:
  BasicDoorbellMemory<W>& memory_;
};

using DoorbellMemory = BasicDoorbellMemory<Word>;
using Doorbell = BasicDoorbell<Word>;

}  // namespace hvd
