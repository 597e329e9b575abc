#include "transport/control/control_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace hvd {

SocketLine::~SocketLine() { ::shutdown(socket_.get(), SHUT_WR); }

bool SocketLine::send(const std::string& message) {
  if (!outbox_.send(frame_of(sent_++, message))) return false;
  if (outbox_.pending()) calls_.kept();
  return true;
}

// Told by a goodbye alone, a peer would have to guess whether all that was sent before has arrived.
void SocketLine::finish() {
  if (outbox_.send(end_of_frames()) && outbox_.pending()) calls_.kept();
}

bool SocketLine::collect(std::deque<ControlMessage>& inbox) {
  if (!any_.load(std::memory_order_acquire)) return true;
  const MutexLock lock(mutex_);
  while (!inbox_.empty()) {
    inbox.push_back(std::move(inbox_.front()));
    inbox_.pop_front();
  }
  any_.store(rubbish_, std::memory_order_relaxed);
  return !rubbish_;
}

// A broken connection is no news here: the failure detector knows what it means.
void SocketLine::readable() {
  while (reads()) {
    std::array<char, 16384> part{};
    const ssize_t got = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) {
      if (!take({part.data(), static_cast<std::size_t>(got)}))
        ended_.store(true, std::memory_order_release);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && would_block(errno)) {
      return;
    } else {
      ended_.store(true, std::memory_order_release);
    }
  }
  calls_.came();
}

// False: nothing more comes, or nothing more that can be read.
bool SocketLine::take(std::string_view part) {
  frames_.stream().append(part);
  FrameParser::Next next{};
  {
    const MutexLock lock(mutex_);
    const std::size_t before = inbox_.size();
    next = take_messages(frames_, peer(), inbox_);
    rubbish_ = next == FrameParser::Next::kRubbish;
    if (inbox_.size() == before && !rubbish_) return next != FrameParser::Next::kEnd;
    any_.store(true, std::memory_order_release);
  }
  calls_.came();
  return next == FrameParser::Next::kNothing;
}

void SocketLine::writable() {
  // Broken: known to its other users soon enough.
  static_cast<void>(outbox_.flush());
  if (!outbox_.pending()) calls_.came();
}

}  // namespace hvd
