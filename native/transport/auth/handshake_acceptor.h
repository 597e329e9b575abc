// Many new connections at once, of strangers and of ranks, each until it is known who is there.
//   talk     a connection whose handshake is under way: a caller that was accepted, or a call of
//            our own
//   connection    a talk that has come to its end, well or badly
// A stranger costs 64 bytes, a descriptor and two seconds at most, and delays nobody: all talks go
// on at the same time, and when there are too many the oldest callers go first.
#pragma once

#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/auth/auth.h"

namespace hvd {

constexpr std::size_t kMostCallers = 64;
// How many strangers a listener's queue holds beside the ranks.
constexpr std::size_t kListenBacklog = 512;

struct Connection {
  enum class End { kKnown, kRefused, kGone };
  End end = End::kGone;
  int call = -1;  // which call of our own; -1: a caller, and then it is known
  bool unix_socket = false;
  Claim claim;
  Fd socket;
};

class HandshakeAcceptor {
 public:
  void listen(Fd listener, bool unix_socket, Handshake::KeyFor key_for);
  void close_listeners() { listeners_.clear(); }
  Status call(int number, Fd socket, const Claim& claim, const std::string& key);

  // Waits until something happens, no longer than the deadline or some milliseconds; gives the
  // connections. Callers that are no ranks are dropped inside.
  Result<std::vector<Connection>> wait(Deadline deadline);
  int refused() const { return refused_; }  // callers that did not know the key

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
