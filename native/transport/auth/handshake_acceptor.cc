#include "transport/auth/handshake_acceptor.h"

#include <poll.h>

#include <algorithm>

#include "base/log.h"
#include "transport/socket/socket.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{2000};
constexpr milliseconds kFairShare{250};  // guaranteed to a caller even if others wait for its place
constexpr int kRoundMs = 100;
const char* const kRoom = "transport/handshake_acceptor";

}  // namespace

void HandshakeAcceptor::listen(Fd listener, bool unix_socket, Handshake::KeyFor key_for) {
  listeners_.push_back({std::move(listener), unix_socket, std::move(key_for)});
}

Status HandshakeAcceptor::call(int number, Fd socket, const Claim& claim, const std::string& key) {
  Result<Handshake> handshake = Handshake::caller(claim, key);
  if (!handshake.is_ok()) return handshake.status();
  // Fits into the socket's buffer: this does not block until the other side accepts.
  Status status = send_all(socket, handshake.value().opening(), Deadline::after_seconds(0));
  if (status) talks_.push_back({number, false, std::move(socket), handshake.take(), Clock::now()});
  return status;
}

Result<std::vector<Connection>> HandshakeAcceptor::wait(Deadline deadline) {
  const bool full = callers() >= kMostCallers;
  std::vector<pollfd> items;
  items.reserve(talks_.size() + listeners_.size() + 1);
  for (const Talk& talk : talks_) items.push_back({talk.socket.get(), POLLIN, 0});
  for (const Listener& listening : listeners_)
    items.push_back({full ? -1 : listening.listener.get(), POLLIN, 0});
  items.push_back(deadline.descriptor());
  const int longest = talks_.empty() ? 1000 : kRoundMs;
  if (::poll(items.data(), items.size(), deadline.remaining_ms(longest)) < 0 && errno != EINTR)
    return errno_status("poll failed", kRoom, errno);
  std::vector<Connection> connections;
  for (Talk& talk : talks_) hear(talk, connections);
  for (const Listener& listening : listeners_) {
    Status status = accept_all(listening);
    if (!status) return status;
  }
  talks_.erase(
      std::remove_if(talks_.begin(), talks_.end(), [](const Talk& talk) { return !talk.socket; }),
      talks_.end());
  return connections;
}

std::size_t HandshakeAcceptor::callers() const {
  return static_cast<std::size_t>(std::count_if(
      talks_.begin(), talks_.end(), [](const Talk& talk) { return talk.call < 0 && talk.socket; }));
}

bool HandshakeAcceptor::make_room() {
  if (callers() < kMostCallers) return true;
  const auto oldest = std::min_element(talks_.begin(), talks_.end(), [](auto& a, auto& b) {
    return std::make_tuple(!a.socket || a.call >= 0, a.since) <
           std::make_tuple(!b.socket || b.call >= 0, b.since);
  });
  if (Clock::now() - oldest->since < kFairShare) return false;
  oldest->socket.reset();
  return true;
}

Status HandshakeAcceptor::accept_all(const Listener& listening) {
  while (make_room()) {
    Result<Fd> socket = accept_one(listening.listener);
    if (!socket.is_ok() || !socket.value()) return socket.status();
    if (listening.unix_socket && !same_user(socket.value())) {
      log(Level::kWarning, kRoom, "dropped a connection of another user");
      continue;
    }
    Result<Handshake> handshake = Handshake::listener(listening.key_for);
    if (!handshake.is_ok()) return handshake.status();
    talks_.push_back({-1, listening.unix_socket, socket.take(), handshake.take(), Clock::now()});
  }
  return Status::ok();
}

// Advance a handshake; closes the socket if the caller is not a rank.
void HandshakeAcceptor::hear(Talk& talk, std::vector<Connection>& connections) {
  if (!talk.socket) return;
  const bool open = converse(talk.socket, talk.handshake);
  const Handshake::State state = talk.handshake.state();
  const bool known = state == Handshake::State::kDone && open;
  const bool ours = talk.call >= 0;
  if (open && state == Handshake::State::kTalking &&
      (ours || Clock::now() - talk.since < kPatience))
    return;
  if (known || ours) {
    const auto end = known                       ? Connection::End::kKnown
                     : talk.handshake.unproven() ? Connection::End::kRefused
                                                 : Connection::End::kGone;
    connections.push_back({end, talk.call, talk.unix_socket, talk.handshake.claim(),
                           known ? std::move(talk.socket) : Fd()});
  } else {
    if (talk.handshake.unproven()) ++refused_;
    log(Level::kInfo, kRoom, "dropped a connection that is not of a rank");
  }
  talk.socket.reset();
}

}  // namespace hvd
