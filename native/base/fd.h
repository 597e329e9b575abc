// An owning file descriptor, and errno as a Status.
#pragma once

#include <cerrno>
#include <string>
#include <utility>

#include "base/status.h"

namespace hvd {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        parents_only_(std::exchange(other.parents_only_, false)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this == &other) return *this;
    reset(std::exchange(other.fd_, -1));
    parents_only_ = std::exchange(other.parents_only_, false);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1);
  // Children that are forked later do not inherit it, as with O_CLOEXEC at exec(): their number
  // refers to /dev/null. For connections whose end signals that a process has exited.
  void close_on_fork();

 private:
  int fd_ = -1;
  bool parents_only_ = false;
};

// A nonblocking call had nothing to do.
inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }
// ... or was interrupted by a signal: the call may succeed later.
inline bool again(int error) { return would_block(error) || error == EINTR; }

// "<what>: <the system's message> (errno 24)" and the limit that was reached, code kUnavailable.
Status errno_status(const std::string& what, const std::string& where, int error);

// Raise the soft limit RLIMIT_NOFILE if needed, as far as the hard limit allows, because poll()
// refuses more descriptors.
void allow_descriptors(std::size_t needed);

// An eventfd for waking a poll(); nonblocking, close-on-exec.
Result<Fd> make_event();
void signal_event(const Fd& event);
void drain_event(const Fd& event);

// n bytes from the system's random source.
Result<std::string> random_bytes(std::size_t n);

}  // namespace hvd
