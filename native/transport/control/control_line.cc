#include "transport/control/control_line.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
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
