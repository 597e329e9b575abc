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

// Rounded up to a whole millisecond, at most an hour; for ever is a series of hours.
int poll_ms(std::chrono::nanoseconds longest) {
  return Deadline(std::min<std::chrono::nanoseconds>(longest, std::chrono::hours(1)))
      .remaining_ms(3'600'000);
}

}  // namespace

Control::~Control() {
  for (const auto& line : lines_) ::shutdown(line->socket.get(), SHUT_WR);
}

void Control::add(int peer, Fd socket) {
  lines_.push_back(std::make_unique<Line>(peer, std::move(socket)));
}

std::vector<Outbox*> Control::outboxes() {
  std::vector<Outbox*> all;
  all.reserve(lines_.size());
  for (const auto& line : lines_) all.push_back(&line->outbox);
  return all;
}

Status Control::send(int peer, const std::string& bytes) {
  if (watch_.abort().raised()) return watch_.abort().cause();
  const auto line =
      std::find_if(lines_.begin(), lines_.end(), [&](const auto& l) { return l->peer == peer; });
  if (line == lines_.end())
    return Status::make(Code::kInternal, "no control channel to rank " + std::to_string(peer),
                        kRoom);
  if (bytes.size() > kMaxFrame)
    return Status::make(
        Code::kInternal,
        "a control message of " + std::to_string(bytes.size()) + " bytes is too long", kRoom);
  if (!(*line)->outbox.send(Packer().text(bytes).take())) return watch_.verdict(peer);
  if ((*line)->outbox.pending()) watch_.nudge();
  return Status::ok();
}

void Control::flush(Deadline deadline) {
  for (const auto& line : lines_) {
    while (line->outbox.pending() && !watch_.abort().raised() && !deadline.expired()) {
      pollfd item{line->socket.get(), POLLOUT, 0};
      ::poll(&item, 1, deadline.remaining_ms(10));  // how late, at worst, it sees an abort
      if (!line->outbox.flush()) break;
    }
  }
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
    const bool woken = poll_once(deadline.remaining());
    if (inbox_.empty() && (woken || deadline.expired())) return {};
  }
}

bool Control::poll_once(std::chrono::nanoseconds longest) {
  std::vector<pollfd> items{{event_.get(), POLLIN, 0}};
  for (const auto& line : lines_)  // poll() skips -1
    items.push_back({line->ended ? -1 : line->socket.get(), POLLIN, 0});
  if (::poll(items.data(), items.size(), poll_ms(longest)) <= 0) return false;
  for (std::size_t i = 0; i < lines_.size(); ++i)
    if (items[i + 1].revents != 0) read(*lines_[i]);
  if (items[0].revents == 0) return false;
  drain_event(event_);
  return true;
}

// An end of the stream is no news here: the watch knows what it means.
void Control::read(Line& line) {
  while (!line.ended) {
    std::array<char, 16384> part{};
    const ssize_t got = ::recv(line.socket.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) {
      line.received.append(part.data(), static_cast<std::size_t>(got));
      if (!take_frames(line)) {
        watch_.raise_everywhere(Status::make(
            Code::kInternal,
            "rank " + std::to_string(line.peer) + " sent a control message that cannot be read",
            kRoom, line.peer));
        line.ended = true;
      } else if (static_cast<std::size_t>(got) < part.size()) {
        return;
      }
    } else if (got < 0 && again(errno)) {
      return;
    } else {
      line.ended = true;
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
