// Outbox of one control socket. send() never waits: what the socket does not take at once is
// kept, and whoever watches the socket flushes it. So a coordinator can go on to the collective
// that its peer needs before it reads again.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/mutex.h"

namespace hvd {

class Outbox {
 public:
  explicit Outbox(const Fd& socket) : socket_(socket) {}

  // False when the connection is broken.
  bool send(std::string_view bytes);
  bool flush();
  bool pending() const;
  const Fd& socket() const { return socket_; }

 private:
  bool push(std::string_view& bytes) REQUIRES(mutex_);

  const Fd& socket_;
  mutable Mutex mutex_;
  std::string kept_ GUARDED_BY(mutex_);
  bool broken_ GUARDED_BY(mutex_) = false;
};

}  // namespace hvd
