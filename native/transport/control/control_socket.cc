#include "transport/control/control_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace hvd {

bool Outbox::send(std::string_view bytes) {
  const MutexLock lock(mutex_);
  if (kept_.empty() && !push(bytes)) return false;
  kept_.append(bytes);
  return !broken_;
}

bool Outbox::flush() {
  const MutexLock lock(mutex_);
  std::string_view rest = kept_;
  const bool good = push(rest);
  kept_.erase(0, good ? kept_.size() - rest.size() : kept_.size());
  return good;
}

bool Outbox::pending() const {
  const MutexLock lock(mutex_);
  return !kept_.empty();
}

// Advance `bytes` by what the socket accepted.
bool Outbox::push(std::string_view& bytes) {
  while (!broken_ && !bytes.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (would_block(errno)) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  return !broken_;
}

SocketLine::~SocketLine() { ::shutdown(socket_.get(), SHUT_WR); }

bool SocketLine::send(const std::string& message) {
  if (!outbox_.send(frame_of(sent_++, message))) return false;
  if (outbox_.pending()) calls_.kept();
  return true;
}

// With a goodbye alone a peer could not know whether everything that was sent before has arrived.
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

// A broken connection is not handled here: the failure detector interprets it.
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
  calls_.received();
}

// False: the stream has ended or is invalid.
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
  calls_.received();
  return next == FrameParser::Next::kNothing;
}

void SocketLine::writable() {
  // A broken connection is reported by its other uses.
  static_cast<void>(outbox_.flush());
  if (!outbox_.pending()) calls_.received();
}

}  // namespace hvd
