#include "transport/link/slot_ring.h"

#include "base/backoff.h"

namespace hvd {

bool changed_while_spinning(const Counter& counter, std::uint32_t seen, const Abort& abort,
                            bool spare_cores) {
  Spin spin = Spin::before_sleep(spare_cores);
  do {
    if (counter.value.load(std::memory_order_acquire) != seen) return true;
  } while (!abort.raised() && spin.again());
  return false;
}

Status has_shut_down(int peer) {
  return Status::make(
      Code::kShutdown,
      "rank " + std::to_string(peer) + " has shut down while this rank still needs it",
      "transport/slot_ring: wait", peer);
}

}  // namespace hvd
