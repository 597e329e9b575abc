// A line of the control channel between two ranks of one host: two rings of bytes (control_ring.h).
// A message that does not fit into the ring is kept and sent piecewise; the peer notifies this rank
// when it has read.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/mutex.h"
#include "transport/control/control.h"
#include "transport/shm/control_ring.h"

namespace hvd {

class MemoryLine : public ControlLine {
 public:
  struct Calls {
    std::function<void()> sent;       // the peer has data to read
    std::function<void()> made_room;  // the peer waited for room, which it has now
    std::function<void()> kept;       // data wait for room here; may be empty
  };
  MemoryLine(int peer, const ControlMemory& out, const ControlMemory& in, Calls calls);

  bool send(const std::string& message) override;
  bool collect(std::deque<ControlMessage>& inbox) override;
  void flush() override;  // any thread
  bool pending() const override { return keeps_.load(std::memory_order_acquire); }
  void finish() override {}

 private:
  void push_kept() REQUIRES(mutex_);

  ControlWriter
      writer_;  // used by the progress-lock owner while keeps_ is false, else guarded by mutex_
  ControlReader reader_;
  Calls calls_;
  FrameParser frames_ = FrameParser::numbered(kMaxFrame);
  std::uint32_t sent_ = 0;  // frames
  Mutex mutex_;
  std::atomic<bool> keeps_{false};
  std::string kept_ GUARDED_BY(mutex_);
  std::size_t done_ GUARDED_BY(mutex_) = 0;  // bytes of kept_ that are written
};

}  // namespace hvd
