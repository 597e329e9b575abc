#include "transport/socket/outbox.h"

#include <sys/socket.h>

#include <cerrno>

namespace hvd {

bool Outbox::send(std::string_view bytes) {
  const MutexLock lock(mutex_);
  if (kept_.empty() && !push(bytes)) return false;
  kept_.append(bytes);
  return !broken_;
}

bool Outbox::flush() {
  const MutexLock lock(mutex_);
  std::string_view rest = kept_;
  const bool good = push(rest);
  kept_.erase(0, good ? kept_.size() - rest.size() : kept_.size());
  return good;
}

bool Outbox::pending() const {
  const MutexLock lock(mutex_);
  return !kept_.empty();
}

// Moves `bytes` behind what the socket took.
bool Outbox::push(std::string_view& bytes) {
  while (!broken_ && !bytes.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (would_block(errno)) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  return !broken_;
}

}  // namespace hvd
