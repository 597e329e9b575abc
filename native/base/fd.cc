#include "base/fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace hvd {
namespace {

// Bitmap of the descriptors that forked children do not inherit: a child may not acquire a lock
// that another thread of its parent held. Larger descriptors, which no usual limit allows, are
// inherited.
constexpr std::size_t kMostClosed = std::size_t{1} << 20U, kWordBits = 64;
std::array<std::atomic<std::uint64_t>, kMostClosed / kWordBits> closed_on_fork;
std::atomic<std::size_t> words_used{0};

void set_closed_on_fork(int fd, bool closed) {
  const auto number = static_cast<std::size_t>(fd);
  if (number >= kMostClosed) return;
  const std::uint64_t bit = std::uint64_t{1} << (number % kWordBits);
  std::atomic<std::uint64_t>& word = closed_on_fork[number / kWordBits];
  if (!closed) {
    word.fetch_and(~bit);
    return;
  }
  word.fetch_or(bit);
  std::size_t used = words_used.load();
  while (used <= number / kWordBits &&
         !words_used.compare_exchange_weak(used, number / kWordBits + 1)) {
  }
}

// Runs in the child, where only async-signal-safe functions are allowed. The numbers stay in use:
// their owners close them as usual.
void close_in_child() {
  const int error = errno;
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (std::size_t word = 0; word < words_used.load(); ++word) {
    for (std::uint64_t rest = closed_on_fork[word].exchange(0); rest != 0; rest &= rest - 1) {
      const int fd = static_cast<int>(word * kWordBits) + __builtin_ctzll(rest);
      if (nowhere < 0 || ::dup3(nowhere, fd, O_CLOEXEC) < 0) ::close(fd);
    }
  }
  if (nowhere >= 0) ::close(nowhere);
  errno = error;
}

}  // namespace

void Fd::reset(int fd) {
  if (std::exchange(parents_only_, false)) set_closed_on_fork(fd_, false);
  if (fd_ >= 0) ::close(fd_);  // Linux frees the descriptor even on EINTR, so never retry
  fd_ = fd;
}

void Fd::close_on_fork() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, close_in_child);
  if (fd_ < 0 || registered != 0) return;
  parents_only_ = true;
  set_closed_on_fork(fd_, true);
}

namespace {

std::string limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

// The limit that was reached, which the system's message does not name.
std::string limit_reached(int error) {
  if (error == EMFILE) return "; RLIMIT_NOFILE is " + limit_of(RLIMIT_NOFILE);
  if (error == ENFILE) return "; the system's fs.file-max is reached";
  if (error == ENOMEM) return "; RLIMIT_AS is " + limit_of(RLIMIT_AS);
  return "";
}

}  // namespace

Status errno_status(const std::string& what, const std::string& where, int error) {
  return Status::make(Code::kUnavailable,
                      what + ": " + std::generic_category().message(error) + " (errno " +
                          std::to_string(error) + ")" + limit_reached(error),
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
  // EAGAIN means that the counter is full: it is signalled already.
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
