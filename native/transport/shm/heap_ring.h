// A SlotRing's memory on this process's heap: between threads as ranks, and as the staging of TCP
// links; and the same for a ring of control bytes.
#pragma once

#include <memory>
#include <new>

#include "transport/link/slot_ring.h"
#include "transport/shm/control_ring.h"

namespace hvd {

class HeapRing {
 public:
  HeapRing(std::size_t slot_bytes, std::size_t count, std::uint32_t first_count = 0)
      : header_(std::make_unique<RingHeader>()),
        slots_(static_cast<std::byte*>(::operator new(slot_bytes * count, kAlign))),
        slot_bytes_(slot_bytes),
        count_(count) {
    start_counters(*header_, first_count);
  }

  RingMemory memory() const {
    return {header_.get(), slots_.get(), slot_bytes_, static_cast<std::uint32_t>(count_)};
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlign); }
  };
  std::unique_ptr<RingHeader> header_;
  std::unique_ptr<std::byte, Free> slots_;
  std::size_t slot_bytes_;
  std::size_t count_;
};

class HeapControlRing {
 public:
  explicit HeapControlRing(std::uint32_t first_count = 0)
      : header_(std::make_unique<ControlHeader>()), bytes_(new std::byte[kControlRingBytes]) {
    start_counters(*header_, first_count);
  }

  ControlMemory memory() const { return {header_.get(), bytes_.get(), kControlRingBytes}; }

 private:
  std::unique_ptr<ControlHeader> header_;
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace hvd
