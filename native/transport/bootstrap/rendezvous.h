// Rendezvous: connects every rank to every other rank. Each rank listens, publishes its address and
// a random token through the bootstrap, and connects to the ranks with smaller numbers. Both sides
// of a connection prove that they know the token of the listening rank, and the ranks' secret if
// there is one (auth.h), before anything else is read. Afterwards all ranks stop listening.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"
#include "transport/auth/handshake_acceptor.h"
#include "transport/bootstrap/bootstrap.h"

namespace hvd {

enum class Purpose : std::uint8_t { kFailureDetector = 0, kControl = 1, kData = 2 };
constexpr std::size_t kPurposes = 3;
constexpr std::size_t kMostStreams = 64;

// The sockets that one rank needs to one peer; the same on both sides.
struct PeerPlan {
  bool same_host = false;                // unix sockets for watch and control
  std::array<bool, kPurposes> wanted{};  // by Purpose; data sockets are always TCP
  std::size_t streams = 1;               // number of data sockets
  bool unix_socket(Purpose purpose) const { return same_host && purpose != Purpose::kData; }
  std::size_t sockets(Purpose purpose) const {
    if (!wanted[static_cast<std::size_t>(purpose)]) return 0;
    return purpose == Purpose::kData ? streams : 1;
  }
};

struct PeerSockets {
  std::array<Fd, kPurposes> by_purpose;
  std::vector<Fd> more_data;  // the data streams after the first
  int pid = 0;                // as reported by the peer
  Fd& operator[](Purpose purpose) { return by_purpose[static_cast<std::size_t>(purpose)]; }
  Fd& at(Purpose purpose, std::size_t stream) {
    return stream == 0 ? (*this)[purpose] : more_data[stream - 1];
  }
  std::vector<Fd> take_data();
};

class Rendezvous {
 public:
  Rendezvous(int rank, std::vector<PeerPlan> plans, Deadline deadline, std::string secret = "")
      : rank_(rank), plans_(std::move(plans)), deadline_(deadline), secret_(std::move(secret)) {}

  // Collective. listen_host is used only if a plan needs TCP.
  Result<std::vector<PeerSockets>> meet(Bootstrap& bootstrap, const std::string& listen_host);

 private:
  struct Card {  // what a rank publishes
    std::string token, unix_name, tcp_host;
    std::uint16_t tcp_port = 0;
    int pid = 0;
  };
  struct Place {  // one required socket
    int peer;
    Purpose purpose;
    std::size_t stream;
  };

  Status listen(const std::string& listen_host);
  Status exchange(Bootstrap& bootstrap);
  void list_places();
  Status call(std::size_t number);
  Status take(Connection connection);
  Status meet_all();
  bool fits(const Claim& claim, bool unix_socket) const;
  Status late() const;

  int rank_;
  std::vector<PeerPlan> plans_;
  Deadline deadline_;
  std::string secret_;
  Card mine_;
  std::vector<Card> cards_;
  Fd unix_listener_, tcp_listener_;
  HandshakeAcceptor acceptor_;
  std::vector<Place> places_;
  std::size_t empty_ = 0;  // number of places without a socket
  std::vector<PeerSockets> sockets_;
};

}  // namespace hvd
