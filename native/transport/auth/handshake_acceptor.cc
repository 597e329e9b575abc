#include "transport/auth/handshake_acceptor.h"

#include <poll.h>

#include <algorithm>

#include "base/log.h"
#include "transport/socket/socket.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{2000};
constexpr milliseconds kFairShare{250};  // that a caller has even when others want its place
constexpr int kRoundMs = 100;
const char* const kRoom = "transport/auth_lobby";

}  // namespace

void Lobby::listen(Fd listener, bool unix_socket, Handshake::KeyFor key_for) {
  doors_.push_back({std::move(listener), unix_socket, std::move(key_for)});
}

Status Lobby::call(int number, Fd socket, const Claim& claim, const std::string& key) {
  Result<Handshake> handshake = Handshake::caller(claim, key);
  if (!handshake.is_ok()) return handshake.status();
  // Goes into the socket's buffer: nothing here waits for the other side to accept.
  Status status = send_all(socket, handshake.value().opening(), Deadline::after_seconds(0));
  if (status) talks_.push_back({number, false, std::move(socket), handshake.take(), Clock::now()});
  return status;
}

Result<std::vector<Guest>> Lobby::wait(Deadline deadline) {
  const bool full = callers() >= kMostCallers;
  std::vector<pollfd> items;
  items.reserve(talks_.size() + doors_.size());
  for (const Talk& talk : talks_) items.push_back({talk.socket.get(), POLLIN, 0});
  for (const Door& door : doors_) items.push_back({full ? -1 : door.listener.get(), POLLIN, 0});
  const int longest = talks_.empty() ? 1000 : kRoundMs;
  if (::poll(items.data(), items.size(), deadline.remaining_ms(longest)) < 0 && errno != EINTR)
    return errno_status("poll failed", kRoom, errno);
  std::vector<Guest> guests;
  for (Talk& talk : talks_) hear(talk, guests);
  for (const Door& door : doors_) {
    Status status = accept_all(door);
    if (!status) return status;
  }
  talks_.erase(
      std::remove_if(talks_.begin(), talks_.end(), [](const Talk& talk) { return !talk.socket; }),
      talks_.end());
  return guests;
}

std::size_t Lobby::callers() const {
  return static_cast<std::size_t>(std::count_if(
      talks_.begin(), talks_.end(), [](const Talk& talk) { return talk.call < 0 && talk.socket; }));
}

bool Lobby::make_room() {
  if (callers() < kMostCallers) return true;
  const auto oldest = std::min_element(talks_.begin(), talks_.end(), [](auto& a, auto& b) {
    return std::make_tuple(!a.socket || a.call >= 0, a.since) <
           std::make_tuple(!b.socket || b.call >= 0, b.since);
  });
  if (Clock::now() - oldest->since < kFairShare) return false;
  oldest->socket.reset();
  return true;
}

Status Lobby::accept_all(const Door& door) {
  while (make_room()) {
    Result<Fd> socket = accept_one(door.listener);
    if (!socket.is_ok() || !socket.value()) return socket.status();
    if (door.unix_socket && !same_user(socket.value())) {
      log(Level::kWarning, kRoom, "dropped a connection of another user");
      continue;
    }
    Result<Handshake> handshake = Handshake::listener(door.key_for);
    if (!handshake.is_ok()) return handshake.status();
    talks_.push_back({-1, door.unix_socket, socket.take(), handshake.take(), Clock::now()});
  }
  return Status::ok();
}

// Closes the socket of whoever turns out to be no rank.
void Lobby::hear(Talk& talk, std::vector<Guest>& guests) {
  if (!talk.socket) return;
  const bool open = converse(talk.socket, talk.handshake);
  const Handshake::State state = talk.handshake.state();
  const bool known = state == Handshake::State::kDone && open;
  const bool ours = talk.call >= 0;
  if (open && state == Handshake::State::kTalking &&
      (ours || Clock::now() - talk.since < kPatience))
    return;
  if (known || ours) {
    const auto end = known                       ? Guest::End::kKnown
                     : talk.handshake.unproven() ? Guest::End::kRefused
                                                 : Guest::End::kGone;
    guests.push_back({end, talk.call, talk.unix_socket, talk.handshake.claim(),
                      known ? std::move(talk.socket) : Fd()});
  } else {
    if (talk.handshake.unproven()) ++refused_;
    log(Level::kInfo, kRoom, "dropped a connection that is no rank's");
  }
  talk.socket.reset();
}

}  // namespace hvd
