#include "transport/tcp_io.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/deadline.h"
#include "base/thread.h"

namespace hvd {
namespace {

constexpr unsigned kIn = POLLIN, kOut = POLLOUT, kEnd = POLLHUP | POLLERR;
constexpr double kFlushSeconds = 2;
constexpr int kAbortCheckMs = 50;  // while the last slots are flushed

}  // namespace

void TcpIo::add(int peer, Fd socket) {
  conns_.push_back(std::make_unique<Conn>(peer, std::move(socket), slot_bytes_, slots_));
}

TcpIo::Conn& TcpIo::conn(int peer) const {
  return **std::find_if(conns_.begin(), conns_.end(),
                        [&](const auto& c) { return c->peer == peer; });
}

Status TcpIo::start() {
  Result<Fd> event = make_event();
  if (!event.is_ok()) return event.status();
  event_ = event.take();
  thread_ = std::thread([this] { run(); });
  return Status::ok();
}

TcpIo::~TcpIo() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  signal_event(event_);
  thread_.join();
}

// The user of a ring has moved its counter before, the I/O thread says that it sleeps before it
// looks at the counters for the last time (all sequentially consistent): one of the two sees the
// other.
void TcpIo::ring() {
  if (sleeping_.load(std::memory_order_seq_cst)) signal_event(event_);
}

void TcpIo::run() {
  name_thread("hvd-io");
  block_signals();
  std::optional<Deadline> last;
  for (;;) {
    if (stop_.load()) {
      if (!last) last = Deadline::after_seconds(kFlushSeconds);
      if (flushed() || abort_.raised() || last->expired()) break;
    }
    bool moved = false;
    for (const auto& conn : conns_) {
      moved = push(*conn) || moved;
      moved = pull(*conn) || moved;
    }
    if (!moved) sleep();
  }
  for (const auto& conn : conns_) ::shutdown(conn->socket.get(), SHUT_WR);
}

bool TcpIo::flushed() const {
  return std::all_of(conns_.begin(), conns_.end(), [](const auto& conn) {
    return conn->out_done || conn->sending.try_peek().data == nullptr;
  });
}

void TcpIo::sleep() {
  std::vector<pollfd> items{{event_.get(), POLLIN, 0}};
  sleeping_.store(true, std::memory_order_seq_cst);
  bool work = false;
  for (const auto& conn : conns_) {
    const bool may_pull = !conn->in_done && conn->receiving.try_acquire().data != nullptr;
    const bool may_push = !conn->out_done && conn->sending.try_peek().data != nullptr;
    work = work || (may_pull && conn->readable) || (may_push && conn->writable);
    const unsigned events = (may_pull ? kIn : 0U) | (may_push ? kOut : 0U);
    // A hang-up is reported even when nothing is asked for: out of the set with whoever is not
    // waited for.
    items.push_back({events == 0 ? -1 : conn->socket.get(), static_cast<short>(events), 0});
  }
  const int wait = stop_.load() ? kAbortCheckMs : -1;
  const int ready = work ? 0 : ::poll(items.data(), items.size(), wait);
  sleeping_.store(false, std::memory_order_seq_cst);
  if (ready <= 0) return;
  if (items[0].revents != 0) drain_event(event_);
  for (std::size_t i = 0; i < conns_.size(); ++i) {
    const auto seen = static_cast<unsigned>(items[i + 1].revents);
    if ((seen & (kIn | kEnd)) != 0) conns_[i]->readable = true;
    if ((seen & (kOut | kEnd)) != 0) conns_[i]->writable = true;
  }
}

bool TcpIo::push(Conn& conn) {
  if (conn.out_done || !conn.writable) return false;
  const Slot slot = conn.sending.try_peek();
  if (slot.data == nullptr) return false;
  if (conn.sent == 0) {
    const std::uint64_t bytes = slot.bytes;
    std::memcpy(conn.out_head.data(), &bytes, sizeof bytes);
  }
  const std::size_t head_left = conn.sent < 8 ? 8 - conn.sent : 0;
  const std::size_t body_sent = conn.sent < 8 ? 0 : conn.sent - 8;
  std::array<iovec, 2> parts{{{conn.out_head.data() + (8 - head_left), head_left},
                              {slot.data + body_sent, slot.bytes - body_sent}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t done = ::sendmsg(conn.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (done < 0) {
    conn.writable = errno == EINTR;
    if (!again(errno)) {
      conn.out_done = true;
      failed(conn, std::generic_category().message(errno));
    }
    return false;
  }
  conn.sent += static_cast<std::size_t>(done);
  if (conn.sent == 8 + slot.bytes) {
    conn.sent = 0;
    conn.sending.release();
  }
  return true;
}

bool TcpIo::pull(Conn& conn) {
  if (conn.in_done || !conn.readable) return false;
  const Slot slot = conn.receiving.try_acquire();
  if (slot.data == nullptr) return false;
  std::uint64_t length = 0;
  std::memcpy(&length, conn.in_head.data(), sizeof length);
  std::byte* const target =
      conn.received < 8 ? conn.in_head.data() + conn.received : slot.data + (conn.received - 8);
  const std::size_t want =
      conn.received < 8 ? 8 - conn.received : static_cast<std::size_t>(length) + 8 - conn.received;
  const ssize_t got = ::recv(conn.socket.get(), target, want, MSG_DONTWAIT);
  if (got < 0 && again(errno)) {
    conn.readable = errno == EINTR;
    return false;
  }
  if (got <= 0) {
    const std::string why = got < 0              ? std::generic_category().message(errno)
                            : conn.received == 0 ? "closed"
                                                 : "closed in the middle of a slot";
    conn.in_done = true;
    conn.ended.store(true, std::memory_order_release);
    failed(conn, why);
    return false;
  }
  pulled(conn, static_cast<std::size_t>(got));
  return true;
}

void TcpIo::pulled(Conn& conn, std::size_t bytes) {
  conn.received += bytes;
  if (conn.received < 8) return;
  std::uint64_t length = 0;
  std::memcpy(&length, conn.in_head.data(), sizeof length);
  if (length > slot_bytes_) {
    conn.in_done = true;
    failed(conn, "a slot announced " + std::to_string(length) + " bytes");
    return;
  }
  if (conn.received < 8 + length) return;
  conn.received = 0;
  conn.receiving.publish(static_cast<std::size_t>(length));
}

void TcpIo::failed(Conn& conn, const std::string& why) {
  broken_(conn.peer, "its data connection broke: " + why);
}

}  // namespace hvd
