#include "transport/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "base/deadline.h"
#include "transport/pack.h"
#include "transport/socket.h"

namespace hvd {
namespace {

const char* const kRoom = "transport/control";

bool again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Rounded up to a whole millisecond, at most an hour; for ever is a series of hours.
int poll_ms(std::chrono::nanoseconds longest) { return Deadline(std::min<std::chrono::nanoseconds>(longest, std::chrono::hours(1))).remaining_ms(3'600'000); }

}  // namespace

Control::~Control() {
  for (const Line& line : lines_) ::shutdown(line.socket.get(), SHUT_WR);
}

// While the peer's buffer is full what comes in is read: two ranks that send to each other cannot wait for each other.
Status Control::send(int peer, const std::string& bytes) {
  const auto line = std::find_if(lines_.begin(), lines_.end(), [&](const Line& l) { return l.peer == peer; });
  if (line == lines_.end())
    return Status::make(Code::kInternal, "no control channel to rank " + std::to_string(peer), kRoom);
  if (bytes.size() > kMaxFrame)
    return Status::make(Code::kInternal, "a control message of " + std::to_string(bytes.size()) + " bytes is too long",
                        kRoom);
  const std::string frame = Packer().text(bytes).take();
  std::string_view rest = frame;
  bool woken = false;
  while (!rest.empty()) {
    if (watch_.abort().raised()) return watch_.abort().cause();
    const ssize_t sent =
        line->socket ? ::send(line->socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT) : -1;
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (line->socket && again(errno)) {
      woken = poll_once(&*line, std::chrono::hours(1)) || woken;
    } else {
      return watch_.verdict(peer);
    }
  }
  if (woken) wake();  // not for us: the next wait() shall see it
  return Status::ok();
}

ControlMessage Control::wait(std::chrono::nanoseconds longest) {
  const Deadline deadline(std::min<std::chrono::nanoseconds>(longest, std::chrono::hours(24)));
  for (;;) {
    if (watch_.abort().raised()) return {};
    if (!inbox_.empty()) {
      ControlMessage message = std::move(inbox_.front());
      inbox_.pop_front();
      return message;
    }
    const bool woken = poll_once(nullptr, deadline.remaining());
    if (inbox_.empty() && (woken || deadline.expired())) return {};
  }
}

bool Control::poll_once(const Line* writable, std::chrono::nanoseconds longest) {
  std::vector<pollfd> items{{event_.get(), POLLIN, 0}};
  for (const Line& line : lines_)  // a closed one is -1, which poll() skips
    items.push_back({line.socket.get(), static_cast<short>(&line == writable ? POLLIN | POLLOUT : POLLIN), 0});
  if (::poll(items.data(), items.size(), poll_ms(longest)) <= 0) return false;
  for (std::size_t i = 0; i < lines_.size(); ++i)
    if ((items[i + 1].revents & ~POLLOUT) != 0) read(lines_[i]);
  if (items[0].revents == 0) return false;
  drain_event(event_);
  return true;
}

// An end of the stream is no news here: the watch knows what it means.
void Control::read(Line& line) {
  while (line.socket) {
    std::array<char, 16384> part{};
    const ssize_t got = ::recv(line.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) {
      line.received.append(part.data(), static_cast<std::size_t>(got));
      if (!take_frames(line)) {
        watch_.raise_everywhere(Status::make(
            Code::kInternal, "rank " + std::to_string(line.peer) + " sent a control message that cannot be read", kRoom,
            line.peer));
        line.socket.reset();
      } else if (static_cast<std::size_t>(got) < part.size()) {
        return;
      }
    } else if (got < 0 && again(errno)) {
      return;
    } else {
      line.socket.reset();
    }
  }
}

bool Control::take_frames(Line& line) {
  std::size_t at = 0;
  const std::string_view all = line.received;
  while (all.size() - at >= 4) {
    const auto bytes = Unpacker(all.substr(at)).number<std::uint32_t>();
    if (bytes > kMaxFrame) return false;
    if (all.size() - at - 4 < bytes) break;
    inbox_.push_back({line.peer, std::string(all.substr(at + 4, bytes))});
    at += 4 + std::size_t{bytes};
  }
  line.received.erase(0, at);
  return true;
}

}  // namespace hvd
