// How every rank gets its sockets to every other: each listens, tells its address and a random
// token through the bootstrap, and connects to the ranks below it. Whoever connects presents the
// token of the rank it comes to in a hello of 36 bytes, the first and only thing read before it is
// known; it is answered with its own token, so that both sides know each other. Afterwards nobody
// listens any more.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/bootstrap.h"

namespace hvd {

enum class Purpose : std::uint8_t { kWatch = 0, kControl = 1, kData = 2 };
constexpr std::size_t kPurposes = 3;

// What one rank needs towards one peer.
struct PeerPlan {
  bool same_host = false;                // unix sockets for watch and control
  std::array<bool, kPurposes> wanted{};  // by Purpose; data sockets are always TCP
  bool unix_socket(Purpose purpose) const { return same_host && purpose != Purpose::kData; }
};

struct PeerSockets {
  std::array<Fd, kPurposes> by_purpose;
  int pid = 0;  // as the peer says
  Fd& operator[](Purpose purpose) { return by_purpose[static_cast<std::size_t>(purpose)]; }
};

class Rendezvous {
 public:
  Rendezvous(int rank, std::vector<PeerPlan> plans, Deadline deadline)
      : rank_(rank), plans_(std::move(plans)), deadline_(deadline) {}

  // Collective. listen_host is used only when some plan wants TCP.
  Result<std::vector<PeerSockets>> meet(Bootstrap& bootstrap, const std::string& listen_host);

 private:
  struct Card {  // what a rank tells of itself
    std::string token, unix_name, tcp_host;
    std::uint16_t tcp_port = 0;
    int pid = 0;
  };
  struct Caller {  // accepted, but not known yet
    Fd socket;
    bool unix_socket;
    std::string hello;
    Deadline patience;
  };

  Status listen(const std::string& listen_host);
  Status exchange(Bootstrap& bootstrap);
  Status call_lower_ranks();
  Status take_calls_of_higher_ranks();
  Status await_answers();
  void accept_all(const Fd& listener, bool unix_socket);
  void hear(Caller& caller);
  bool admit(Caller& caller);
  bool wants(bool (*of)(const PeerPlan&)) const;
  std::string missing() const;

  int rank_;
  std::vector<PeerPlan> plans_;
  Deadline deadline_;
  Card mine_;
  std::vector<Card> cards_;
  Fd unix_listener_, tcp_listener_;
  std::vector<Caller> callers_;
  std::vector<PeerSockets> sockets_;
};

}  // namespace hvd
