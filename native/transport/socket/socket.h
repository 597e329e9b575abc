// Stream sockets, unix and TCP: nonblocking, close-on-exec, every wait with a deadline, no signal
// on a broken pipe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace hvd {

// Listen. A unix name is in the abstract namespace: not on disk, and freed with the last
// descriptor.
Result<Fd> listen_unix(const std::string& name, int backlog);
Result<Fd> listen_tcp(const std::string& host, std::uint16_t port, int backlog);
std::uint16_t bound_port(const Fd& listener);
Result<Fd> accept_one(const Fd& listener);  // empty if no connection is pending
// True if an address of the host name can be reached from other hosts.
bool reaches_others(const std::string& host);

// One attempt each, within the deadline.
Result<Fd> connect_unix(const std::string& name, Deadline deadline);
Result<Fd> connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline);
// Close a mostly idle TCP connection if the peer's host has not answered for about `seconds`, at
// least two. The host's kernel answers, so a stopped or busy process does not count.
void end_when_silent(const Fd& socket, double seconds);
// The process at the other end of a unix socket.
struct Credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<Credentials> peer_of(const Fd& socket);

Status send_all(const Fd& socket, std::string_view bytes, Deadline deadline);
Result<std::string> receive_all(const Fd& socket, std::size_t bytes, Deadline deadline);
// Of at most kMaxFrame bytes (frame.h).
Status send_frame(const Fd& socket, std::string_view bytes, Deadline deadline);
Result<std::string> receive_frame(const Fd& socket, Deadline deadline);

// A descriptor, over a unix socket.
Status send_fd(const Fd& socket, const Fd& passenger, Deadline deadline);
Result<Fd> receive_fd(const Fd& socket, Deadline deadline);

}  // namespace hvd
