#include "transport/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "transport/pack.h"
#include "transport/socket.h"

namespace hvd {
namespace {

constexpr std::uint32_t kMagic = 0x6876644D;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kTokenBytes = 16;
constexpr std::size_t kHelloBytes = 4 + 4 + 4 + 1 + kTokenBytes + 7;
constexpr std::size_t kMostCallers = 64;
constexpr double kPatienceSeconds = 2;
const char* const kRoom = "transport/rendezvous";

std::string hello_of(int rank, Purpose purpose, const std::string& token) {
  return Packer()
      .number(kMagic)
      .number(kVersion)
      .number(static_cast<std::int32_t>(rank))
      .number(static_cast<std::uint8_t>(purpose))
      .raw(token)
      .raw(std::string(7, '\0'))
      .take();
}

// Takes the same time wherever the first difference is.
bool same_token(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  return difference == 0;
}

std::string hex(const std::string& bytes) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4U];
    text += kDigits[static_cast<unsigned char>(c) & 15U];
  }
  return text;
}

bool same_user(const Fd& socket) {
  const Result<Credentials> who = peer_of(socket);
  return who.is_ok() && who.value().uid == ::geteuid();
}

}  // namespace

bool Rendezvous::wants(bool (*of)(const PeerPlan&)) const {
  return std::any_of(plans_.begin(), plans_.end(), of);
}

Status Rendezvous::listen(const std::string& listen_host) {
  const int backlog =
      static_cast<int>(std::min<std::size_t>(4096, kPurposes * plans_.size() + kMostCallers));
  Result<std::string> token = random_bytes(kTokenBytes);
  Result<std::string> name = random_bytes(kTokenBytes);
  if (!token.is_ok()) return token.status();
  if (!name.is_ok()) return name.status();
  mine_.token = token.take();
  mine_.pid = static_cast<int>(::getpid());
  if (wants([](const PeerPlan& plan) { return plan.same_host; })) {
    mine_.unix_name = "hvd-" + hex(name.value());
    Result<Fd> listener = listen_unix(mine_.unix_name, backlog);
    if (!listener.is_ok()) return listener.status();
    unix_listener_ = listener.take();
  }
  if (wants([](const PeerPlan& plan) {
        return plan.wanted[static_cast<std::size_t>(Purpose::kData)] ||
               (plan.wanted[static_cast<std::size_t>(Purpose::kWatch)] && !plan.same_host);
      })) {
    mine_.tcp_host = listen_host;
    Result<Fd> listener = listen_tcp(listen_host, 0, backlog);
    if (!listener.is_ok()) return listener.status();
    tcp_listener_ = listener.take();
    mine_.tcp_port = bound_port(tcp_listener_);
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

// The hello goes into the socket's buffer: nothing here waits for a peer to accept.
Status Rendezvous::call_lower_ranks() {
  for (int peer = 0; peer < rank_; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    for (std::size_t i = 0; i < kPurposes; ++i) {
      if (!plans_[at].wanted[i]) continue;
      const auto purpose = static_cast<Purpose>(i);
      const bool local = plans_[at].unix_socket(purpose);
      Result<Fd> socket = local ? connect_unix(cards_[at].unix_name, deadline_)
                                : connect_tcp(cards_[at].tcp_host, cards_[at].tcp_port, deadline_);
      Status status = socket.status();
      if (status && local && !same_user(socket.value()))
        status = Status::make(Code::kUnavailable, "another user answers", kRoom);
      if (status)
        status = send_all(socket.value(), hello_of(rank_, purpose, cards_[at].token), deadline_);
      if (!status) {
        status.message = "rank " + std::to_string(rank_) + " cannot reach rank " +
                         std::to_string(peer) + ": " + status.message;
        return status;
      }
      sockets_[at].by_purpose[i] = socket.take();
    }
  }
  return Status::ok();
}

std::string Rendezvous::missing() const {
  std::string text;
  for (std::size_t peer = static_cast<std::size_t>(rank_) + 1; peer < plans_.size(); ++peer)
    for (std::size_t i = 0; i < kPurposes; ++i)
      if (plans_[peer].wanted[i] && !sockets_[peer].by_purpose[i]) {
        text += (text.empty() ? "" : ", ") + std::to_string(peer);
        break;
      }
  return text;
}

Status Rendezvous::take_calls_of_higher_ranks() {
  while (!missing().empty()) {
    if (deadline_.expired())
      return Status::make(Code::kTimeout,
                          "rank " + missing() + " did not connect to rank " +
                              std::to_string(rank_) +
                              " in time; look whether it still runs, or raise the start timeout",
                          kRoom);
    std::vector<pollfd> items{{unix_listener_.get(), POLLIN, 0}, {tcp_listener_.get(), POLLIN, 0}};
    for (const Caller& caller : callers_) items.push_back({caller.socket.get(), POLLIN, 0});
    const int ready =
        ::poll(items.data(), items.size(), deadline_.remaining_ms(callers_.empty() ? 1000 : 100));
    if (ready < 0 && errno != EINTR) return errno_status("poll failed", kRoom, errno);
    for (Caller& caller : callers_) hear(caller);
    callers_.erase(
        std::remove_if(callers_.begin(), callers_.end(), [](const Caller& c) { return !c.socket; }),
        callers_.end());
    accept_all(unix_listener_, true);
    accept_all(tcp_listener_, false);
  }
  return Status::ok();
}

void Rendezvous::accept_all(const Fd& listener, bool unix_socket) {
  if (!listener) return;
  while (callers_.size() < kMostCallers) {
    Fd socket = accept_one(listener);
    if (!socket) return;
    if (unix_socket && !same_user(socket)) {
      log(Level::kWarning, kRoom, "dropped a connection of another user");
      continue;
    }
    callers_.push_back(
        {std::move(socket), unix_socket, "", Deadline::after_seconds(kPatienceSeconds)});
    hear(callers_.back());
  }
}

// Reads what is there of the hello; closes the socket of whoever is not a rank we wait for.
void Rendezvous::hear(Caller& caller) {
  if (!caller.socket) return;
  std::array<char, kHelloBytes> part{};
  const ssize_t got =
      ::recv(caller.socket.get(), part.data(), kHelloBytes - caller.hello.size(), MSG_DONTWAIT);
  if (got > 0) caller.hello.append(part.data(), static_cast<std::size_t>(got));
  const bool nothing_yet = got < 0 && again(errno);
  if (caller.hello.size() == kHelloBytes) {
    if (!admit(caller)) log(Level::kWarning, kRoom, "dropped a connection that is no rank's");
    caller.socket.reset();
  } else if ((got <= 0 && !nothing_yet) || caller.patience.expired()) {
    caller.socket.reset();
  }
}

bool Rendezvous::admit(Caller& caller) {
  Unpacker reader(caller.hello);
  const bool ours =
      reader.number<std::uint32_t>() == kMagic && reader.number<std::uint32_t>() == kVersion;
  const auto peer = reader.number<std::int32_t>();
  const auto purpose = reader.number<std::uint8_t>();
  if (!ours || !same_token(reader.raw(kTokenBytes), mine_.token)) return false;
  if (peer <= rank_ || peer >= static_cast<int>(plans_.size()) || purpose >= kPurposes)
    return false;
  const auto at = static_cast<std::size_t>(peer);
  const PeerPlan& plan = plans_[at];
  Fd& place = sockets_[at].by_purpose[purpose];
  if (!plan.wanted[purpose] || place ||
      plan.unix_socket(static_cast<Purpose>(purpose)) != caller.unix_socket)
    return false;
  if (!send_all(caller.socket, cards_[at].token, deadline_)) return false;
  place = std::move(caller.socket);
  return true;
}

Status Rendezvous::await_answers() {
  for (int peer = 0; peer < rank_; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    for (const Fd& socket : sockets_[at].by_purpose) {
      if (!socket) continue;
      const Result<std::string> answer = receive_all(socket, kTokenBytes, deadline_);
      if (!answer.is_ok() || !same_token(answer.value(), mine_.token))
        return Status::make(answer.is_ok() ? Code::kInternal : answer.status().code,
                            "rank " + std::to_string(peer) + " does not answer rank " +
                                std::to_string(rank_) + ": " +
                                (answer.is_ok() ? "wrong token" : answer.status().message),
                            kRoom, peer);
    }
  }
  return Status::ok();
}

Result<std::vector<PeerSockets>> Rendezvous::meet(Bootstrap& bootstrap,
                                                  const std::string& listen_host) {
  sockets_.resize(plans_.size());
  Status status = listen(listen_host);
  if (status) status = exchange(bootstrap);
  if (status) status = call_lower_ranks();
  if (status) status = take_calls_of_higher_ranks();
  if (status) status = await_answers();
  if (!status) return status;
  for (std::size_t peer = 0; peer < cards_.size(); ++peer) sockets_[peer].pid = cards_[peer].pid;
  return std::move(sockets_);
}

}  // namespace hvd
