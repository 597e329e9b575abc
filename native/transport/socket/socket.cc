#include "transport/socket/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "transport/socket/pack.h"

namespace hvd {

namespace {

constexpr int kFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
const char* const kRoom = "transport/socket";

struct Freeaddrinfo {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, Freeaddrinfo>;

Result<AddressList> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    return Status::make(
        Code::kUnavailable,
        "the host name \"" + host + "\" cannot be resolved: " + ::gai_strerror(error), kRoom);
  return AddressList(found);
}

std::string place(const std::string& host, std::uint16_t port) {
  return host + ":" + std::to_string(port);
}

// The remedy for an error of bind() or connect(), which the system's message does not contain.
std::string remedy_of(int error, std::uint16_t port) {
  if (error == EADDRINUSE && port != 0)
    return "; another process has this port: end it, or choose another";
  if (error != EADDRINUSE && error != EADDRNOTAVAIL) return "";
  return "; if every port of net.ipv4.ip_local_port_range is taken, widen it or end what holds "
         "them";
}

Status cannot_listen(const std::string& where, int error, std::uint16_t port) {
  Status status = errno_status("cannot listen on " + where, kRoom, error);
  status.message += remedy_of(error, port);
  return status;
}

Status cannot_connect(int error) {
  Status status = errno_status("cannot connect", kRoom, error);
  status.message += remedy_of(error, 0);
  return status;
}

socklen_t unix_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero byte: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool stays_here(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24U == 127;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Not inherited by children: the end of its connections signals a rank's death.
Fd own(int made) {
  Fd socket(made);
  socket.close_on_fork();
  return socket;
}

void send_at_once(const Fd& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void set_tcp(const Fd& socket, int option, int value) {
  ::setsockopt(socket.get(), IPPROTO_TCP, option, &value, sizeof value);
}

Status wait_ready(const Fd& socket, short events, Deadline deadline) {
  for (;;) {
    std::array<pollfd, 2> items{pollfd{socket.get(), events, 0}, deadline.descriptor()};
    const int ready = ::poll(items.data(), items.size(), deadline.remaining_ms());
    if (items[0].revents != 0 && ready > 0) return Status::ok();
    if (ready < 0 && errno != EINTR) return errno_status("poll failed", kRoom, errno);
    if (deadline.expired()) return Status::make(Code::kTimeout, "the peer does not answer", kRoom);
  }
}

Status finish_connect(const Fd& socket, Deadline deadline) {
  Status status = wait_ready(socket, POLLOUT, deadline);
  if (!status) return status;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == 0 ? Status::ok() : cannot_connect(error);
}

}  // namespace

Result<Fd> listen_unix(const std::string& name, int backlog) {
  Fd socket = own(::socket(AF_UNIX, kFlags, 0));
  sockaddr_un address{};
  const socklen_t length = unix_address(name, address);
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), backlog) != 0)
    return errno_status("cannot listen on a unix socket", kRoom, errno);
  return socket;
}

Result<Fd> listen_tcp(const std::string& host, std::uint16_t port, int backlog) {
  Result<AddressList> list = resolve(host, port);
  if (!list.is_ok()) return list.status();
  int error = 0;
  for (const addrinfo* item = list.value().get(); item != nullptr; item = item->ai_next) {
    Fd socket = own(::socket(item->ai_family, kFlags, 0));
    const int on = 1;
    if (socket) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (socket && ::bind(socket.get(), item->ai_addr, item->ai_addrlen) == 0 &&
        ::listen(socket.get(), backlog) == 0)
      return socket;
    error = errno;
  }
  return cannot_listen(place(host, port), error, port);
}

bool reaches_others(const std::string& host) {
  const Result<AddressList> list = resolve(host, 0);
  if (!list.is_ok()) return false;
  for (const addrinfo* item = list.value().get(); item != nullptr; item = item->ai_next)
    if (!stays_here(*item->ai_addr)) return true;
  return false;
}

std::uint16_t bound_port(const Fd& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Result<Fd> accept_one(const Fd& listener) {
  Fd socket = own(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) send_at_once(socket);  // has no effect on a unix socket
  // Without a free descriptor or memory a pending connection could wait forever.
  const bool no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  if (!socket && no_room) return errno_status("cannot accept a connection", kRoom, errno);
  return socket;
}

Result<Fd> connect_unix(const std::string& name, Deadline deadline) {
  sockaddr_un address{};
  const socklen_t length = unix_address(name, address);
  Fd socket = own(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return errno_status("cannot make a unix socket", kRoom, errno);
  // A full backlog blocks; the send timeout bounds that.
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(deadline.remaining().count() / 1'000'000'000 + 1);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    return errno_status("cannot connect to a rank of this host", kRoom, errno);
  return socket;
}

Result<Fd> connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline) {
  Result<AddressList> list = resolve(host, port);
  if (!list.is_ok()) return list.status();
  Status last = Status::make(Code::kUnavailable, "no address", kRoom);
  for (const addrinfo* item = list.value().get(); item != nullptr; item = item->ai_next) {
    Fd socket = own(::socket(item->ai_family, kFlags, 0));
    if (!socket) return errno_status("cannot make a socket", kRoom, errno);
    const int done = ::connect(socket.get(), item->ai_addr, item->ai_addrlen);
    last = done == 0              ? Status::ok()
           : errno == EINPROGRESS ? finish_connect(socket, deadline)
                                  : cannot_connect(errno);
    if (!last) continue;
    send_at_once(socket);
    return socket;
  }
  last.message += " (" + place(host, port) + ")";
  return last;
}

// Many probes, so that a connection with packet loss is not mistaken for a broken one.
void end_when_silent(const Fd& socket, double seconds) {
  constexpr int kQuestions = 10;
  const int all = static_cast<int>(std::clamp(seconds, 2.0, 32'000.0));
  const int idle = std::max(1, all / 3);
  const int between = std::max(1, (all - idle) / kQuestions);
  set_tcp(socket, TCP_KEEPIDLE, idle);
  set_tcp(socket, TCP_KEEPINTVL, between);
  set_tcp(socket, TCP_KEEPCNT, std::clamp((all - idle) / between, 1, 127));
  // While data are unacknowledged no probes are sent: this covers data sent before the line broke.
  set_tcp(socket, TCP_USER_TIMEOUT, all * 1000);
}

Result<Credentials> peer_of(const Fd& socket) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0)
    return errno_status("the peer of a unix socket is unknown", kRoom, errno);
  return Credentials{who.pid, who.uid};
}

Status send_all(const Fd& socket, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (would_block(errno)) {
      Status status = wait_ready(socket, POLLOUT, deadline);
      if (!status) return status;
    } else if (errno != EINTR) {
      return errno_status("cannot send", kRoom, errno);
    }
  }
  return Status::ok();
}

Result<std::string> receive_all(const Fd& socket, std::size_t bytes, Deadline deadline) {
  std::string buffer;
  while (buffer.size() < bytes) {
    // Grows as bytes arrive: an announced length does not allocate memory.
    std::array<char, 16384> part{};
    const std::size_t want = std::min(part.size(), bytes - buffer.size());
    const ssize_t got = ::recv(socket.get(), part.data(), want, MSG_DONTWAIT);
    if (got > 0) {
      buffer.append(part.data(), static_cast<std::size_t>(got));
    } else if (got == 0) {
      return Status::make(Code::kUnavailable, "the peer closed the connection", kRoom);
    } else if (would_block(errno)) {
      Status status = wait_ready(socket, POLLIN, deadline);
      if (!status) return status;
    } else if (errno != EINTR) {
      return errno_status("cannot receive", kRoom, errno);
    }
  }
  return buffer;
}

Status send_frame(const Fd& socket, std::string_view bytes, Deadline deadline) {
  if (bytes.size() > kMaxFrame)
    return Status::make(Code::kInvalidArgument,
                        "a message of " + std::to_string(bytes.size()) + " bytes is too long",
                        kRoom);
  return send_all(socket, frame_of(bytes), deadline);
}

Result<std::string> receive_frame(const Fd& socket, Deadline deadline) {
  Result<std::string> head = receive_all(socket, kLengthBytes, deadline);
  if (!head.is_ok()) return head;
  const std::uint32_t bytes = announced_bytes(head.value());
  if (bytes > kMaxFrame)
    return Status::make(Code::kInternal,
                        "a message announces " + std::to_string(bytes) + " bytes: refused", kRoom);
  return receive_all(socket, bytes, deadline);
}

Status send_fd(const Fd& socket, const Fd& passenger, Deadline deadline) {
  char byte = 'f';
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = passenger.get();
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  while (::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (!again(errno)) return errno_status("cannot pass a descriptor", kRoom, errno);
    Status status = wait_ready(socket, POLLOUT, deadline);
    if (!status) return status;
  }
  return Status::ok();
}

Result<Fd> receive_fd(const Fd& socket, Deadline deadline) {
  for (;;) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space.data();
    message.msg_controllen = space.size();
    const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && again(errno)) {
      Status status = wait_ready(socket, POLLIN, deadline);
      if (!status) return status;
      continue;
    }
    if (got < 0) return errno_status("cannot receive a descriptor", kRoom, errno);
    const cmsghdr* const head = got == 0 ? nullptr : CMSG_FIRSTHDR(&message);
    if (head == nullptr || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof(int)))
      return Status::make(Code::kUnavailable, "the peer passed no descriptor", kRoom);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return Fd(fd);
  }
}

namespace {

constexpr std::uint32_t kEnd = 0xFFFFFFFF;
static_assert(kMaxFrame < kEnd);

}  // namespace

std::string frame_of(std::string_view body) { return Packer().text(body).take(); }

std::string frame_of(std::uint32_t number, std::string_view body) {
  return Packer().length(body.size()).number(number).raw(body).take();
}

std::array<char, 2 * kLengthBytes> frame_head(std::uint32_t number, std::size_t body_bytes) {
  const std::array<std::uint32_t, 2> fields{static_cast<std::uint32_t>(body_bytes), number};
  std::array<char, 2 * kLengthBytes> head{};
  std::memcpy(head.data(), fields.data(), head.size());
  return head;
}

std::string end_of_frames() { return Packer().number(kEnd).take(); }

std::uint32_t announced_bytes(std::string_view head) {
  return Unpacker(head).number<std::uint32_t>();
}

FrameParser::Next FrameParser::next(std::string_view& body) {
  const std::string_view rest = std::string_view(stream_).substr(at_);
  const std::size_t head = numbered_ ? 2 * kLengthBytes : kLengthBytes;
  if (rest.size() >= kLengthBytes) {
    const std::uint32_t bytes = announced_bytes(rest);
    if (bytes == kEnd) return Next::kEnd;
    if (bytes > longest_) return Next::kRubbish;
    if (numbered_ && rest.size() >= head && announced_bytes(rest.substr(kLengthBytes)) != number_)
      return Next::kRubbish;
    if (rest.size() >= head + bytes) {
      body = rest.substr(head, bytes);
      at_ += head + bytes;
      ++number_;
      return Next::kFrame;
    }
  }
  stream_.erase(0, at_);
  at_ = 0;
  return Next::kNothing;
}

}  // namespace hvd
