// What goes out on one control socket. send() never waits: what the socket does not take at once is
// kept, and whoever watches the socket flushes it. So a coordinator can go on to the collective
// that its peer needs before it reads again.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "base/fd.h"

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
  bool push(std::string_view& bytes);

  const Fd& socket_;
  mutable std::mutex mutex_;
  std::string kept_;     // guarded by mutex_
  bool broken_ = false;  // guarded by mutex_
};

}  // namespace hvd
