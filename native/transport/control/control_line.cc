#include "transport/control/control_line.h"

#include <string_view>
#include <utility>

namespace hvd {

MemoryLine::MemoryLine(int peer, const ControlMemory& out, const ControlMemory& in, Calls calls)
    : ControlLine(peer), writer_(out), reader_(in), calls_(std::move(calls)) {}

bool MemoryLine::send(const std::string& message) {
  const auto head = frame_head(sent_++, message.size());
  if (!pending() && writer_.room(head.size() + message.size()) >= head.size() + message.size()) {
    writer_.write({head.data(), head.size()});
    writer_.write(message);
    writer_.show();
    calls_.sent();
    return true;
  }
  const MutexLock lock(mutex_);
  kept_.append(head.data(), head.size()).append(message);
  keeps_.store(true, std::memory_order_relaxed);
  push_kept();
  if (pending() && calls_.kept) calls_.kept();
  return true;
}

void MemoryLine::flush() {
  if (!pending()) return;
  const MutexLock lock(mutex_);
  if (pending()) push_kept();
}

// After keeps_ is cleared nothing may be accessed: from then on the progress-lock owner writes
// without the lock.
void MemoryLine::push_kept() {
  const std::size_t moved = write_what_fits(writer_, std::string_view(kept_).substr(done_));
  done_ += moved;
  if (moved != 0) calls_.sent();
  if (done_ < kept_.size()) {
    if (done_ > kept_.size() / 2) kept_.erase(0, std::exchange(done_, 0));
    return;
  }
  writer_.want(false);
  kept_.clear();
  kept_.shrink_to_fit();
  done_ = 0;
  keeps_.store(false, std::memory_order_release);
}

bool MemoryLine::collect(std::deque<ControlMessage>& inbox) {
  for (;;) {
    const ControlReader::Found found = reader_.take(frames_.stream());
    if (found == ControlReader::Found::kRubbish) return false;
    if (found == ControlReader::Found::kNothing) return true;
    if (reader_.wanted()) calls_.made_room();
    if (take_messages(frames_, peer(), inbox) != FrameParser::Next::kNothing) return false;
  }
}

}  // namespace hvd
