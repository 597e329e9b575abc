#include "base/fd.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace hvd {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);  // Linux frees the descriptor even on EINTR: never retried
  fd_ = fd;
}

namespace {

std::string limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

// Which limit was met, where the system's sentence does not say it.
std::string limit_behind(int error) {
  if (error == EMFILE) return "; RLIMIT_NOFILE is " + limit_of(RLIMIT_NOFILE);
  if (error == ENFILE) return "; the system's fs.file-max is reached";
  if (error == ENOMEM) return "; RLIMIT_AS is " + limit_of(RLIMIT_AS);
  return "";
}

}  // namespace

Status errno_status(const std::string& what, const std::string& where, int error) {
  return Status::make(Code::kUnavailable,
                      what + ": " + std::generic_category().message(error) + " (errno " +
                          std::to_string(error) + ")" + limit_behind(error),
                      where);
}

void allow_descriptors(std::size_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || needed <= limit.rlim_cur) return;
  limit.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Result<Fd> make_event() {
  Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return errno_status("cannot make an eventfd", "base/fd: make_event", errno);
  return event;
}

void signal_event(const Fd& event) {
  const std::uint64_t one = 1;
  // EAGAIN means that the counter is full, that is: it is signalled already.
  while (::write(event.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void drain_event(const Fd& event) {
  std::uint64_t count = 0;
  while (::read(event.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
}

Result<std::string> random_bytes(std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t have = 0; have < n;) {
    const ssize_t got = ::getrandom(bytes.data() + have, n - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("no random bytes", "base/fd: random_bytes", errno);
    have += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace hvd
