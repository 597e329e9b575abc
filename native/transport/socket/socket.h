// Stream sockets, unix and TCP, and frames on them. Sockets are nonblocking and close-on-exec,
// every wait has a deadline, and a broken pipe raises no signal.
#pragma once

#include <sys/types.h>

#include <array>
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
// Of at most kMaxFrame bytes (see below).
Status send_frame(const Fd& socket, std::string_view bytes, Deadline deadline);
Result<std::string> receive_frame(const Fd& socket, Deadline deadline);

// A descriptor, over a unix socket.
Status send_fd(const Fd& socket, const Fd& passenger, Deadline deadline);
Result<Fd> receive_fd(const Fd& socket, Deadline deadline);

// Frames on a stream of bytes: a length of four bytes, then that many bytes. Numbered frames have
// their number (four bytes, starting at 0) in between: a frame that is repeated, late or out of
// order is refused.

constexpr std::uint32_t kMaxFrame = 16U << 20U;
constexpr std::size_t kLengthBytes = 4;

std::string frame_of(std::string_view body);
std::string frame_of(std::uint32_t number, std::string_view body);
// The head of a numbered frame.
std::array<char, 2 * kLengthBytes> frame_head(std::uint32_t number, std::size_t body_bytes);
// Sent instead of a frame: the end of the stream.
std::string end_of_frames();

// The length of the body, from a frame's first four bytes.
std::uint32_t announced_bytes(std::string_view head);

class FrameParser {
 public:
  enum class Next { kFrame, kNothing, kEnd, kRubbish };

  static FrameParser plain(std::uint32_t longest) { return {longest, false}; }
  static FrameParser numbered(std::uint32_t longest) { return {longest, true}; }

  // Append received bytes to this.
  std::string& stream() { return stream_; }
  // The next frame's body, valid until the next call. kNothing: it is incomplete. kEnd and kRubbish
  // are final.
  Next next(std::string_view& body);

 private:
  FrameParser(std::uint32_t longest, bool numbered) : longest_(longest), numbered_(numbered) {}

  std::uint32_t longest_;
  bool numbered_;
  std::uint32_t number_ = 0;  // of the next frame
  std::string stream_;
  std::size_t at_ = 0;  // position of the next frame in it
};

}  // namespace hvd
