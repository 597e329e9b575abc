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

// Listening. A unix name is in the abstract namespace: nothing on disk, gone with the last
// descriptor.
Result<Fd> listen_unix(const std::string& name, int backlog);
Result<Fd> listen_tcp(const std::string& host, std::uint16_t port, int backlog);
std::uint16_t bound_port(const Fd& listener);
Result<Fd> accept_one(const Fd& listener);  // empty when nobody waits
// Whether some address that the host name stands for can be reached from other hosts.
bool reaches_others(const std::string& host);

// One attempt each, within the deadline.
Result<Fd> connect_unix(const std::string& name, Deadline deadline);
Result<Fd> connect_tcp(const std::string& host, std::uint16_t port, Deadline deadline);
// A TCP connection that little is sent over ends when the peer's host has answered nothing for
// about so many seconds, at least two. The host answers, not the process: one that is stopped or
// busy is not meant.
void end_when_silent(const Fd& socket, double seconds);
// Whose process is at the other end of a unix socket.
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
