#include "transport/tcp_bootstrap.h"

#include <poll.h>

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "transport/pack.h"
#include "transport/socket.h"

namespace hvd {
namespace {

constexpr std::uint32_t kMagic = 0x68766442;  // "Bdvh"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHelloBytes = 16;
constexpr double kHelloSeconds = 2;
constexpr double kGraceSeconds = 2;
const char* const kRoom = "transport/tcp_bootstrap";

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

// Rank 0's answers carry a Status in front of the payload.
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
  if (!reader.complete() || code > static_cast<std::uint8_t>(Code::kInternal))
    return Status::make(Code::kInternal, "rank 0 sent an answer that cannot be read", kRoom);
  if (code != 0) return Status::make(static_cast<Code>(code), std::move(message), kRoom, rank);
  return payload;
}

struct Hello {
  int rank = -1;
  Status status;
};

// Who a new connection is. Not ours: rank -1 and an ok status, to be dropped.
Hello read_hello(const Fd& socket, int size, const std::vector<Fd>& peers, Deadline deadline) {
  const Result<std::string> bytes = receive_all(socket, kHelloBytes, deadline);
  if (!bytes.is_ok()) return {};
  Unpacker reader(bytes.value());
  const bool ours =
      reader.number<std::uint32_t>() == kMagic && reader.number<std::uint32_t>() == kVersion;
  const auto rank = reader.number<std::int32_t>();
  const auto its_size = reader.number<std::int32_t>();
  if (!ours) return {};
  const auto refuse = [rank](const std::string& text) {
    return Hello{rank, Status::make(Code::kInvalidArgument, text, kRoom, rank)};
  };
  const std::string who = "rank " + std::to_string(rank);
  if (its_size != size)
    return refuse(who + " was started with size " + std::to_string(its_size) +
                  ", rank 0 with size " + std::to_string(size) +
                  "; start every rank with the same size");
  if (rank < 1 || rank >= size) return refuse(who + " is outside of size " + std::to_string(size));
  if (peers[static_cast<std::size_t>(rank)])
    return refuse("two processes call themselves " + who + "; give every process its own rank");
  return {rank, Status::ok()};
}

}  // namespace

Result<std::unique_ptr<TcpBootstrap>> TcpBootstrap::connect(int rank, int size,
                                                            const std::string& host,
                                                            std::uint16_t port, double timeout_s) {
  if (size < 1 || rank < 0 || rank >= size)
    return Status::make(
        Code::kInvalidArgument,
        "rank " + std::to_string(rank) + " of size " + std::to_string(size) + " does not exist",
        kRoom);
  std::unique_ptr<TcpBootstrap> bootstrap(new TcpBootstrap(rank, size, timeout_s));
  if (size == 1) return bootstrap;
  Status status =
      rank == 0 ? bootstrap->gather_ranks(host, port) : bootstrap->reach_root(host, port);
  if (!status) return status;
  return bootstrap;
}

// One connection after the other: a stranger who says nothing costs two seconds at most, and the
// kernel queues the others.
Status TcpBootstrap::gather_ranks(const std::string& host, std::uint16_t port) {
  const Deadline deadline = Deadline::after_seconds(timeout_s_);
  Result<Fd> listener = listen_tcp(host, port, size_ + 16);
  if (!listener.is_ok()) return listener.status();
  peers_.resize(static_cast<std::size_t>(size_));
  while (!missing(peers_).empty()) {
    pollfd item{listener.value().get(), POLLIN, 0};
    const int ready = ::poll(&item, 1, deadline.remaining_ms());
    if (ready <= 0 && deadline.expired()) {
      Status late = Status::make(Code::kTimeout,
                                 "rank " + missing(peers_) + " did not come to rank 0 at " + host +
                                     ":" + std::to_string(port) + " within " + seconds(timeout_s_) +
                                     "; look whether they started, or raise the start timeout",
                                 kRoom);
      tell_all(late, "");
      return late;
    }
    Fd socket = accept_one(listener.value());
    if (!socket) continue;
    const double patience =
        std::min(kHelloSeconds, std::chrono::duration<double>(deadline.remaining()).count());
    Hello hello = read_hello(socket, size_, peers_, Deadline::after_seconds(patience));
    if (!hello.status) {
      if (!send_frame(socket, answer(hello.status, ""), deadline))
        log(Level::kInfo, kRoom, "a refused rank is gone");
      tell_all(hello.status, "");
      return hello.status;
    }
    if (hello.rank > 0) {
      peers_[static_cast<std::size_t>(hello.rank)] = std::move(socket);
    } else {
      log(Level::kInfo, kRoom, "dropped a connection that is no rank's");
    }
  }
  tell_all(Status::ok(), "");
  return Status::ok();
}

Status TcpBootstrap::reach_root(const std::string& host, std::uint16_t port) {
  const Deadline deadline = Deadline::after_seconds(timeout_s_);
  const std::string hello =
      Packer().number(kMagic).number(kVersion).number(rank_).number(size_).take();
  std::chrono::milliseconds pause{2};
  for (;;) {
    Result<Fd> socket = connect_tcp(host, port, deadline);
    if (socket.is_ok() && send_all(socket.value(), hello, deadline)) {
      // Rank 0 gives up after its own timeout, and then says who is missing: worth waiting for.
      const Result<std::string> frame =
          receive_frame(socket.value(), Deadline::after_seconds(timeout_s_ + kGraceSeconds));
      if (frame.is_ok()) {
        const Result<std::string> go = opened(frame.value());
        if (!go.is_ok()) return go.status();
        peers_.push_back(socket.take());
        return Status::ok();
      }
    }
    if (deadline.expired())
      return Status::make(Code::kTimeout,
                          "rank 0 did not answer at " + host + ":" + std::to_string(port) +
                              " within " + seconds(timeout_s_) +
                              "; look whether it started and whether the address is right",
                          kRoom, 0);
    // Nobody listens yet: there is nothing to wait on but time.
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, deadline.remaining()));
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

void TcpBootstrap::tell_all(const Status& status, const std::string& payload) {
  const Deadline deadline = Deadline::after_seconds(timeout_s_);
  const std::string frame = answer(status, payload);
  for (const Fd& peer : peers_) {
    if (!peer) continue;
    if (!send_frame(peer, frame, deadline))
      log(Level::kInfo, kRoom, "a rank went away during the exchange");
  }
}

Result<std::vector<std::string>> TcpBootstrap::allgather_at_root(const std::string& mine) {
  const Deadline deadline = Deadline::after_seconds(timeout_s_);
  Packer all;
  all.text(mine);
  std::vector<std::string> parts{mine};
  for (int rank = 1; rank < size_; ++rank) {
    Result<std::string> part = receive_frame(peers_[static_cast<std::size_t>(rank)], deadline);
    if (!part.is_ok()) {
      Status status = Status::make(
          part.status().code,
          "rank " + std::to_string(rank) + " dropped out of the start: " + part.status().message,
          kRoom, rank);
      tell_all(status, "");
      return status;
    }
    all.text(part.value());
    parts.push_back(part.take());
  }
  tell_all(Status::ok(), all.take());
  return parts;
}

Result<std::vector<std::string>> TcpBootstrap::allgather(const std::string& mine) {
  if (size_ == 1) return std::vector<std::string>{mine};
  if (rank_ == 0) return allgather_at_root(mine);
  // Rank 0 may use its whole timeout for the slowest rank before it answers.
  const Deadline deadline = Deadline::after_seconds(2 * timeout_s_);
  Status status = send_frame(peers_[0], mine, deadline);
  if (!status) return status;
  const Result<std::string> frame = receive_frame(peers_[0], deadline);
  if (!frame.is_ok())
    return Status::make(frame.status().code,
                        "rank 0 dropped out of the start: " + frame.status().message, kRoom, 0);
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
