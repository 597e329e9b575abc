#include "transport/bootstrap/tcp_bootstrap.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstdlib>

#include "base/failpoint.h"
#include "base/log.h"
#include "transport/socket/pack.h"
#include "transport/socket/socket.h"

namespace hvd {
namespace {

constexpr std::uint8_t kPurpose = 0xB0;  // distinct from the purposes in rendezvous.h
constexpr double kGraceSeconds = 2;
const char* const kRoom = "transport/tcp_bootstrap";
const char* const kClosed = "the peer closed the connection";

std::string seconds(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

std::string missing(const std::vector<Fd>& peers) {
  std::string text;
  for (std::size_t rank = 1; rank < peers.size(); ++rank)
    if (!peers[rank]) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// Rank 0's answers have a Status before the payload.
std::string answer(const Status& status, const std::string& payload) {
  return Packer()
      .number(static_cast<std::uint8_t>(status.code))
      .number(static_cast<std::int32_t>(status.rank))
      .text(status.message)
      .text(payload)
      .take();
}

Result<std::string> opened(const std::string& frame) {
  Unpacker reader(frame);
  const auto code = reader.number<std::uint8_t>();
  const auto rank = reader.number<std::int32_t>();
  std::string message = reader.text();
  std::string payload = reader.text();
  if (!reader.complete() || code >= kCodeCount)
    return Status::make(Code::kInternal, "rank 0 sent an answer that cannot be read", kRoom);
  if (code != 0) return Status::make(static_cast<Code>(code), std::move(message), kRoom, rank);
  return payload;
}

// The error of an authenticated rank, if any.
Status fault_of(const Claim& claim, int size, const std::vector<Fd>& peers) {
  const auto refuse = [&claim](const std::string& text) {
    return Status::make(Code::kInvalidArgument, text, kRoom, claim.rank);
  };
  const std::string who = "rank " + std::to_string(claim.rank);
  if (claim.to != size)
    return refuse(who + " was started with size " + std::to_string(claim.to) +
                  ", rank 0 with size " + std::to_string(size) +
                  "; start every rank with the same size");
  if (claim.rank < 1 || claim.rank >= size)
    return refuse(who + " is outside of size " + std::to_string(size));
  if (peers[static_cast<std::size_t>(claim.rank)])
    return refuse("two processes call themselves " + who + "; give every process its own rank");
  return Status::ok();
}

Status dropped_out(int rank, const std::string& why, Code code = Code::kUnavailable) {
  return Status::make(code, "rank " + std::to_string(rank) + " dropped out of the start: " + why,
                      kRoom, rank);
}

// A descriptor that cannot be polled (a file) is skipped.
void add_to(const Fd& epoll, int descriptor, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  static_cast<void>(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event));
}

bool has_hung_up(const Fd& socket) {
  pollfd item{socket.get(), POLLRDHUP, 0};
  return ::poll(&item, 1, 0) > 0;
}

// Call it before checking which ranks live: news also end the deadline, and would count as a
// timeout if they arrived in between.
bool is_over(const Deadline& deadline) {
  const bool over = deadline.expired();
  failpoint("bootstrap.deadline_seen");
  return over;
}

bool insecure_by_choice() {
  const char* const value = std::getenv("HVD_INSECURE");  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr && std::string_view(value) == "1";
}

Status check_secret(const std::string& host, const std::string& secret) {
  if (!secret.empty() || insecure_by_choice() || !reaches_others(host)) return Status::ok();
  return Status::make(
      Code::kInvalidArgument,
      "rank 0 is at " + host +
          ", which other machines can reach, and the ranks have no secret to know each other by; "
          "set HVD_SECRET_KEY (or HOROVOD_SECRET_KEY) to the same long random text on every rank, "
          "for example from `openssl rand -hex 32` (HVD_INSECURE=1: go without)",
      kRoom);
}

}  // namespace

TcpBootstrap::TcpBootstrap(int rank, int size, double timeout_s, const std::string& secret)
    : rank_(rank), size_(size), timeout_s_(timeout_s), key_(connection_key(secret, "bootstrap")) {}

Result<std::unique_ptr<TcpBootstrap>> TcpBootstrap::connect(int rank, int size,
                                                            const std::string& host,
                                                            std::uint16_t port, double timeout_s,
                                                            const std::string& secret,
                                                            std::vector<Acquaintance> known) {
  if (size < 1 || rank < 0 || rank >= size)
    return Status::make(
        Code::kInvalidArgument,
        "rank " + std::to_string(rank) + " of size " + std::to_string(size) + " does not exist",
        kRoom);
  std::unique_ptr<TcpBootstrap> bootstrap(new TcpBootstrap(rank, size, timeout_s, secret));
  bootstrap->known_ = std::move(known);
  if (size == 1) return bootstrap;
  bootstrap->news_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  for (const Acquaintance& one : bootstrap->known_) add_to(bootstrap->news_, one.pidfd, EPOLLIN);
  Status status = check_secret(host, secret);
  if (status)
    status = rank == 0 ? bootstrap->gather_ranks(host, port) : bootstrap->reach_root(host, port);
  if (!status) return status;
  return bootstrap;
}

Status TcpBootstrap::gather_ranks(const std::string& host, std::uint16_t port) {
  const Deadline deadline = patience(timeout_s_);
  Result<Fd> listener = listen_tcp(host, port, size_ + static_cast<int>(kListenBacklog));
  if (!listener.is_ok()) return listener.status();
  HandshakeAcceptor acceptor;
  acceptor.listen(listener.take(), false, [this](const Claim& claim) {
    return claim.purpose == kPurpose ? std::optional<std::string>(key_) : std::nullopt;
  });
  peers_.resize(static_cast<std::size_t>(size_));
  while (!missing(peers_).empty()) {
    const bool over = is_over(deadline);
    if (Status status = alive(); !status) {
      answer_all(status, "");
      return status;
    }
    if (over) return late(host, port, acceptor.refused());
    Result<std::vector<Connection>> connections = acceptor.wait(deadline);
    if (!connections.is_ok()) return connections.status();
    for (Connection& connection : connections.value()) {
      Status status = accept_connection(std::move(connection));
      if (!status) return status;
    }
  }
  answer_all(Status::ok(), "");
  return Status::ok();
}

void TcpBootstrap::give_up(const Status& why) {
  if (rank_ == 0) answer_all(why, "");
}

Deadline TcpBootstrap::patience(double seconds) const {
  return Deadline::after_seconds(seconds).or_readable(news_.get());
}

// While no rank listens yet, only time and news can be waited for.
void TcpBootstrap::nap(std::chrono::milliseconds longest, Deadline deadline) const {
  pollfd item = deadline.descriptor();
  static_cast<void>(::poll(&item, 1, deadline.remaining_ms(static_cast<int>(longest.count()))));
}

void TcpBootstrap::heed(const Fd& socket) { add_to(news_, socket.get(), EPOLLRDHUP); }

Status TcpBootstrap::alive() {
  if (Status status = known_live(); !status) return status;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i] || !has_hung_up(peers_[i])) continue;
    if (rank_ == 0) return dropped_out(static_cast<int>(i), kClosed);
    // Rank 0 may have sent the reason before it disconnected.
    const Result<std::string> frame = receive_frame(peers_[0], Deadline::after_seconds(0));
    const Result<std::string> reason = frame.is_ok() ? opened(frame.value()) : frame;
    return reason.is_ok() || !frame.is_ok() ? dropped_out(0, kClosed) : reason.status();
  }
  return Status::ok();
}

Status TcpBootstrap::known_live() const {
  for (const Acquaintance& one : known_) {
    pollfd item{one.pidfd, POLLIN, 0};
    if (::poll(&item, 1, 0) > 0)
      return Status::make(
          Code::kRankDied,
          "rank " + std::to_string(one.rank) + " exited before the ranks could rendezvous again",
          kRoom, one.rank);
  }
  return Status::ok();
}

// An authenticated rank; an error of one rank is an error of the whole start.
Status TcpBootstrap::accept_connection(Connection connection) {
  Status fault = fault_of(connection.claim, size_, peers_);
  if (fault) {
    heed(connection.socket);
    peers_[static_cast<std::size_t>(connection.claim.rank)] = std::move(connection.socket);
    return fault;
  }
  if (!send_frame(connection.socket, answer(fault, ""), Deadline::after_seconds(timeout_s_)))
    log(Level::kInfo, kRoom, "a refused rank is gone");
  answer_all(fault, "");
  return fault;
}

Status TcpBootstrap::late(const std::string& host, std::uint16_t port, int refused) {
  std::string text = "rank " + missing(peers_) + " did not come to rank 0 at " + host + ":" +
                     std::to_string(port) + " within " + seconds(timeout_s_) +
                     "; look whether they started, or raise the start timeout";
  if (refused > 0)
    text += " (" + std::to_string(refused) +
            " connections did not know the secret: is HVD_SECRET_KEY the same everywhere?)";
  Status status = Status::make(Code::kTimeout, std::move(text), kRoom);
  answer_all(status, "");
  return status;
}

// A socket on which both sides are authenticated; empty: closed, to be retried.
Result<Fd> TcpBootstrap::introduce(Fd socket, Deadline deadline) const {
  HandshakeAcceptor acceptor;
  const Claim claim{rank_, size_, kPurpose, 0};
  if (!acceptor.call(0, std::move(socket), claim, key_)) return Fd();
  while (!deadline.expired()) {
    Result<std::vector<Connection>> connections = acceptor.wait(deadline);
    if (!connections.is_ok()) return connections.status();
    if (connections.value().empty()) continue;
    if (connections.value()[0].end == Connection::End::kRefused)
      return Status::make(Code::kInvalidArgument,
                          "rank 0 and rank " + std::to_string(rank_) +
                              " do not have the same secret; set HVD_SECRET_KEY (or "
                              "HOROVOD_SECRET_KEY) to the same text on every rank",
                          kRoom, rank_);
    return std::move(connections.value()[0].socket);
  }
  return Fd();
}

Status TcpBootstrap::reach_root(const std::string& host, std::uint16_t port) {
  const Deadline deadline = patience(timeout_s_);
  std::chrono::milliseconds pause{2};
  for (;;) {
    Result<Fd> socket = connect_tcp(host, port, deadline);
    if (socket.is_ok()) socket = introduce(socket.take(), deadline);
    if (socket.status().code == Code::kInvalidArgument) return socket.status();
    if (socket.is_ok() && socket.value()) {
      // Rank 0 gives up after its own timeout and then reports the missing ranks: wait for that.
      const Result<std::string> frame =
          receive_frame(socket.value(), patience(timeout_s_ + kGraceSeconds));
      if (frame.is_ok()) {
        const Result<std::string> go = opened(frame.value());
        if (!go.is_ok()) return go.status();
        heed(socket.value());
        peers_.push_back(socket.take());
        return Status::ok();
      }
    }
    const bool over = is_over(deadline);
    if (Status status = known_live(); !status) return status;
    if (over)
      return Status::make(Code::kTimeout,
                          "rank 0 did not answer at " + host + ":" + std::to_string(port) +
                              " within " + seconds(timeout_s_) +
                              "; look whether it started and whether the address is right" +
                              (socket.is_ok() ? "" : " (" + socket.status().message + ")"),
                          kRoom, 0);
    nap(pause, deadline);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

void TcpBootstrap::answer_all(const Status& status, const std::string& payload) {
  const Deadline deadline = Deadline::after_seconds(timeout_s_);
  const std::string frame = answer(status, payload);
  for (const Fd& peer : peers_) {
    if (!peer) continue;
    if (!send_frame(peer, frame, deadline))
      log(Level::kInfo, kRoom, "a rank went away during the exchange");
  }
}

Result<std::vector<std::string>> TcpBootstrap::allgather_at_root(const std::string& mine) {
  const Deadline deadline = patience(timeout_s_);
  Packer all;
  all.text(mine);
  std::vector<std::string> parts{mine};
  for (int rank = 1; rank < size_; ++rank) {
    Result<std::string> part = receive_frame(peers_[static_cast<std::size_t>(rank)], deadline);
    if (!part.is_ok()) {
      Status status = alive();
      if (status) status = dropped_out(rank, part.status().message, part.status().code);
      answer_all(status, "");
      return status;
    }
    all.text(part.value());
    parts.push_back(part.take());
  }
  answer_all(Status::ok(), all.take());
  return parts;
}

Result<std::vector<std::string>> TcpBootstrap::allgather(const std::string& mine) {
  if (size_ == 1) return std::vector<std::string>{mine};
  if (rank_ == 0) return allgather_at_root(mine);
  // Rank 0 may use its whole timeout for the slowest rank before it answers.
  const Deadline deadline = patience(2 * timeout_s_);
  const Status sent = send_frame(peers_[0], mine, deadline);
  if (sent.code == Code::kInvalidArgument) return sent;
  // Also if it receives nothing any more: it may have sent the reason before it disconnected.
  const Result<std::string> frame = receive_frame(peers_[0], deadline);
  if (!frame.is_ok()) {
    if (Status status = known_live(); !status) return status;
    const Status& why = sent ? frame.status() : sent;
    return dropped_out(0, why.message, why.code);
  }
  const Result<std::string> payload = opened(frame.value());
  if (!payload.is_ok()) return payload.status();
  Unpacker reader(payload.value());
  std::vector<std::string> parts;
  parts.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) parts.push_back(reader.text());
  if (!reader.complete())
    return Status::make(Code::kInternal, "rank 0's list of ranks cannot be read", kRoom, 0);
  return parts;
}

}  // namespace hvd
