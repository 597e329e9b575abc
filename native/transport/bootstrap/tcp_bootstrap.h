// Bootstrap over one port of rank 0: a star. Rank 0 listens, the other ranks try until the timeout.
// A caller proves that it knows the secret of the ranks (auth.h). Without a secret any process that
// can reach the port could pose as a rank, so an address other than the loopback is refused then,
// unless HVD_INSECURE=1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/visible.h"
#include "transport/auth/handshake_acceptor.h"
#include "transport/bootstrap/bootstrap.h"

namespace hvd {

// A rank of this host that is known from before, by its pidfd, which the caller keeps open: once it
// has exited, waiting for it is useless. Any descriptor that becomes readable then will do.
struct Acquaintance {
  int rank;
  int pidfd;
};

class HVD_VISIBLE TcpBootstrap : public Bootstrap {
 public:
  // Returns once every rank is connected; the error names the missing ranks. kRankDied: one of the
  // known ranks has exited.
  static Result<std::unique_ptr<TcpBootstrap>> connect(int rank, int size, const std::string& host,
                                                       std::uint16_t port, double timeout_s,
                                                       const std::string& secret = "",
                                                       std::vector<Acquaintance> known = {});

  Result<std::vector<std::string>> allgather(const std::string& mine) override;
  int news() const override { return news_.get(); }
  Status alive() override;
  Status finish() override { return allgather("").status(); }
  void give_up(const Status& why) override;

 private:
  TcpBootstrap(int rank, int size, double timeout_s, const std::string& secret);

  Status gather_ranks(const std::string& host, std::uint16_t port);
  Status known_live() const;
  Deadline patience(double seconds) const;
  void nap(std::chrono::milliseconds longest, Deadline deadline) const;
  void heed(const Fd& socket);
  Status accept_connection(Connection connection);
  Status late(const std::string& host, std::uint16_t port, int refused);
  Status reach_root(const std::string& host, std::uint16_t port);
  Result<Fd> introduce(Fd socket, Deadline deadline) const;
  Result<std::vector<std::string>> allgather_at_root(const std::string& mine);
  void answer_all(const Status& status, const std::string& payload);

  int rank_;
  int size_;
  double timeout_s_;
  std::string key_;
  std::vector<Acquaintance> known_;
  Fd news_;                // an epoll of the known ranks and of peers_
  std::vector<Fd> peers_;  // rank 0: a socket per rank (its own empty); other ranks: only rank 0's
};

}  // namespace hvd
