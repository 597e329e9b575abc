// Handshakes of many new connections at once, with ranks and unauthenticated callers.
//   talk         a connection during its handshake, incoming or outgoing
//   connection   the result of a completed handshake, successful or not
// A caller that never authenticates costs at most 64 bytes, a descriptor and two seconds, and
// delays no other connection: all handshakes run concurrently, and if there are too many the oldest
// callers are dropped first.
#pragma once

#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/auth/auth.h"

namespace hvd {

constexpr std::size_t kMostCallers = 64;
// Room for unauthenticated callers in a listener's queue, besides the ranks.
constexpr std::size_t kListenBacklog = 512;

struct Connection {
  enum class End { kKnown, kRefused, kGone };
  End end = End::kGone;
  int call = -1;  // index of the outgoing call; -1: an authenticated caller
  bool unix_socket = false;
  Claim claim;
  Fd socket;
};

class HandshakeAcceptor {
 public:
  void listen(Fd listener, bool unix_socket, Handshake::KeyFor key_for);
  void close_listeners() { listeners_.clear(); }
  Status call(int number, Fd socket, const Claim& claim, const std::string& key);

  // Wait for events, until the deadline or for some milliseconds; return the connections. Callers
  // that are not ranks are dropped.
  Result<std::vector<Connection>> wait(Deadline deadline);
  int refused() const { return refused_; }  // number of callers without the key

 private:
  struct Listener {
    Fd listener;
    bool unix_socket;
    Handshake::KeyFor key_for;
  };
  struct Talk {
    int call;
    bool unix_socket;
    Fd socket;
    Handshake handshake;
    Clock::time_point since;
  };

  Status accept_all(const Listener& listening);
  bool make_room();
  void hear(Talk& talk, std::vector<Connection>& connections);
  std::size_t callers() const;

  std::vector<Listener> listeners_;
  std::vector<Talk> talks_;
  int refused_ = 0;
};

}  // namespace hvd
