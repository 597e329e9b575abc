#include "transport/bootstrap/rendezvous.h"

#include <unistd.h>

#include <algorithm>

#include "transport/socket/pack.h"
#include "transport/socket/socket.h"

namespace hvd {
namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::size_t kNameBytes = 16;
const char* const kRoom = "transport/rendezvous";

std::string hex(const std::string& bytes) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4U];
    text += kDigits[static_cast<unsigned char>(c) & 15U];
  }
  return text;
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::vector<Fd> PeerSockets::take_data() {
  std::vector<Fd> all;
  all.push_back(std::move((*this)[Purpose::kData]));
  for (Fd& socket : more_data) all.push_back(std::move(socket));
  more_data.clear();
  return all;
}

void Rendezvous::list_places() {
  sockets_.resize(plans_.size());
  for (std::size_t peer = 0; peer < plans_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    for (std::size_t i = 0; i < kPurposes; ++i) {
      const auto purpose = static_cast<Purpose>(i);
      for (std::size_t stream = 0; stream < plans_[peer].sockets(purpose); ++stream)
        places_.push_back({static_cast<int>(peer), purpose, stream});
    }
    const std::size_t streams = plans_[peer].sockets(Purpose::kData);
    sockets_[peer].more_data.resize(streams > 1 ? streams - 1 : 0);
  }
  empty_ = places_.size();
}

Status Rendezvous::listen(const std::string& listen_host) {
  const int backlog =
      static_cast<int>(std::min<std::size_t>(4096, places_.size() + kListenBacklog));
  Result<std::string> token = random_bytes(kTokenBytes);
  Result<std::string> name = random_bytes(kNameBytes);
  if (!token.is_ok()) return token.status();
  if (!name.is_ok()) return name.status();
  mine_.token = token.take();
  mine_.pid = static_cast<int>(::getpid());
  const auto wanted = [this](bool unix_socket) {
    return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
      return plans_[static_cast<std::size_t>(place.peer)].unix_socket(place.purpose) == unix_socket;
    });
  };
  if (wanted(true)) {
    mine_.unix_name = "hvd-" + hex(name.value());
    Result<Fd> listener = listen_unix(mine_.unix_name, backlog);
    if (!listener.is_ok()) return listener.status();
    unix_listener_ = listener.take();
  }
  if (wanted(false)) {
    mine_.tcp_host = listen_host;
    Result<Fd> listener = listen_tcp(listen_host, 0, backlog);
    if (!listener.is_ok()) return listener.status();
    mine_.tcp_port = bound_port(listener.value());
    tcp_listener_ = listener.take();
  }
  return Status::ok();
}

Status Rendezvous::exchange(Bootstrap& bootstrap) {
  const std::string bytes = Packer()
                                .text(mine_.token)
                                .text(mine_.unix_name)
                                .text(mine_.tcp_host)
                                .number(mine_.tcp_port)
                                .number(static_cast<std::int32_t>(mine_.pid))
                                .take();
  const Result<std::vector<std::string>> all = bootstrap.allgather(bytes);
  if (!all.is_ok()) return all.status();
  if (all.value().size() != plans_.size())
    return Status::make(Code::kInternal,
                        "the bootstrap gave addresses for the wrong number of ranks", kRoom);
  for (const std::string& item : all.value()) {
    Unpacker reader(item);
    Card card;
    card.token = reader.text();
    card.unix_name = reader.text();
    card.tcp_host = reader.text();
    card.tcp_port = reader.number<std::uint16_t>();
    card.pid = reader.number<std::int32_t>();
    if (!reader.complete() || card.token.size() != kTokenBytes || card.unix_name.size() > 64)
      return Status::make(
          Code::kInternal,
          "the address of rank " + std::to_string(cards_.size()) + " cannot be read", kRoom);
    cards_.push_back(std::move(card));
  }
  return Status::ok();
}

bool Rendezvous::fits(const Claim& claim, bool unix_socket) const {
  if (claim.to != rank_ || claim.rank <= rank_ || claim.purpose >= kPurposes) return false;
  const auto at = static_cast<std::size_t>(claim.rank);
  const auto purpose = static_cast<Purpose>(claim.purpose);
  return at < plans_.size() && claim.stream < plans_[at].sockets(purpose) &&
         plans_[at].unix_socket(purpose) == unix_socket;
}

Status Rendezvous::call(std::size_t number) {
  const Place& place = places_[number];
  const auto at = static_cast<std::size_t>(place.peer);
  const bool local = plans_[at].unix_socket(place.purpose);
  Result<Fd> socket = local ? connect_unix(cards_[at].unix_name, deadline_)
                            : connect_tcp(cards_[at].tcp_host, cards_[at].tcp_port, deadline_);
  Status status = socket.status();
  if (status && local && !same_user(socket.value()))
    status = Status::make(Code::kUnavailable, "another user answers", kRoom);
  const Claim claim{rank_, place.peer, static_cast<std::uint8_t>(place.purpose),
                    static_cast<std::uint8_t>(place.stream)};
  if (status)
    status = acceptor_.call(static_cast<int>(number), socket.take(), claim,
                            connection_key(secret_, cards_[at].token));
  if (!status)
    status.message =
        rank_name(rank_) + " cannot reach " + rank_name(place.peer) + ": " + status.message;
  return status;
}

// Handle an authenticated socket, or an outgoing connection that failed.
Status Rendezvous::take(Connection connection) {
  const bool calls = connection.call >= 0;
  const int peer = calls ? connection.claim.to : connection.claim.rank;
  if (connection.end == Connection::End::kRefused)
    return Status::make(Code::kUnavailable,
                        rank_name(peer) + " and " + rank_name(rank_) +
                            " do not have the same secret; set HVD_SECRET_KEY (or "
                            "HOROVOD_SECRET_KEY) to the same text on every rank",
                        kRoom, peer);
  // Unauthenticated callers may have displaced the connection: retry.
  if (connection.end == Connection::End::kGone)
    return call(static_cast<std::size_t>(connection.call));
  Fd& place = sockets_[static_cast<std::size_t>(peer)].at(
      static_cast<Purpose>(connection.claim.purpose), connection.claim.stream);
  if (place) return Status::ok();  // a second one for the same place is dropped
  place = std::move(connection.socket);
  --empty_;
  return Status::ok();
}

Status Rendezvous::late() const {
  std::string text;
  int named = -1;
  for (const Place& place : places_) {
    const PeerSockets& peer = sockets_[static_cast<std::size_t>(place.peer)];
    const Fd& socket = place.stream == 0 ? peer.by_purpose[static_cast<std::size_t>(place.purpose)]
                                         : peer.more_data[place.stream - 1];
    if (socket || place.peer == named) continue;
    named = place.peer;
    text += (text.empty() ? "" : ", ") + std::to_string(named);
  }
  text = "rank " + text + " did not connect to " + rank_name(rank_) +
         " in time; look whether it still runs, or raise the start timeout";
  if (acceptor_.refused() > 0)
    text += " (" + std::to_string(acceptor_.refused()) +
            " connections did not know the secret: is HVD_SECRET_KEY the same everywhere?)";
  return Status::make(Code::kTimeout, std::move(text), kRoom);
}

Status Rendezvous::meet_all() {
  for (const bool unix_socket : {true, false}) {
    Fd& listener = unix_socket ? unix_listener_ : tcp_listener_;
    if (listener)
      acceptor_.listen(std::move(listener), unix_socket,
                       [this, unix_socket](const Claim& claim) -> std::optional<std::string> {
                         if (!fits(claim, unix_socket)) return std::nullopt;
                         return connection_key(secret_, mine_.token);
                       });
  }
  for (std::size_t number = 0; number < places_.size(); ++number) {
    Status status = places_[number].peer < rank_ ? call(number) : Status::ok();
    if (!status) return status;
  }
  while (empty_ > 0) {
    if (deadline_.expired()) return late();
    Result<std::vector<Connection>> connections = acceptor_.wait(deadline_);
    if (!connections.is_ok()) return connections.status();
    for (Connection& connection : connections.value()) {
      Status status = take(std::move(connection));
      if (!status) return status;
    }
  }
  return Status::ok();
}

Result<std::vector<PeerSockets>> Rendezvous::meet(Bootstrap& bootstrap,
                                                  const std::string& listen_host) {
  list_places();
  Status status = listen(listen_host);
  if (status) status = exchange(bootstrap);
  if (status) status = meet_all();
  if (!status) return status;
  for (std::size_t peer = 0; peer < cards_.size(); ++peer) sockets_[peer].pid = cards_[peer].pid;
  return std::move(sockets_);
}

}  // namespace hvd
