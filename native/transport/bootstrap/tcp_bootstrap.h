// The exchange of addresses over one port of rank 0: a star. Rank 0 listens, the others try until
// the timeout. Whoever comes proves that it knows the secret of the ranks (auth.h). Without one
// anybody who can reach the port may pose as a rank, so that an address that is not the loopback's
// is refused then, unless HVD_INSECURE=1.
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

// A rank of this host that was met before, by its pidfd, which the caller keeps open: when it has
// ended there is no use in waiting for it. Any descriptor serves that becomes readable then.
struct Acquaintance {
  int rank;
  int pidfd;
};

class HVD_VISIBLE TcpBootstrap : public Bootstrap {
 public:
  // Returns when every rank is there; the error names the ranks that are missing. kRankDied: one
  // of the known ranks has ended.
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
  Fd news_;                // an epoll of those, and of the ends of peers_
  std::vector<Fd> peers_;  // rank 0: a socket per rank (its own empty); the others: rank 0's alone
};

}  // namespace hvd
