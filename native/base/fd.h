// A file descriptor that closes itself, and errno as a Status.
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
  // A child that this process forks from now on does not get it, as with O_CLOEXEC at exec(): its
  // number leads nowhere there (/dev/null). For a connection whose end says that a process has
  // ended.
  void close_on_fork();

 private:
  int fd_ = -1;
  bool parents_only_ = false;
};

// A call that does not wait found nothing to do.
inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }
// ... or a signal came in between: the same call may go through later.
inline bool again(int error) { return would_block(error) || error == EINTR; }

// "<what>: <the system's sentence> (errno 24)" and the limit that was met, code kUnavailable.
Status errno_status(const std::string& what, const std::string& where, int error);

// poll() refuses more descriptors than RLIMIT_NOFILE: its soft limit is raised where so many are
// needed, as far as the hard one allows.
void allow_descriptors(std::size_t needed);

// An eventfd for waking a poll(); nonblocking, close-on-exec.
Result<Fd> make_event();
void signal_event(const Fd& event);
void drain_event(const Fd& event);

// n bytes from the system's random source.
Result<std::string> random_bytes(std::size_t n);

}  // namespace hvd
