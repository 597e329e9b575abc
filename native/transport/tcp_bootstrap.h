// The exchange of addresses over one port of rank 0: a star. Rank 0 listens, the others try until
// the timeout. Nothing secret exists yet, so whoever can reach the port may pose as a rank: it is
// on the loopback unless the host given is not, and what it parses from a stranger is 16 bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/bootstrap.h"

namespace hvd {

class TcpBootstrap : public Bootstrap {
 public:
  // Returns when every rank is there; the error names the ranks that are missing.
  static Result<std::unique_ptr<TcpBootstrap>> connect(int rank, int size, const std::string& host,
                                                       std::uint16_t port, double timeout_s);

  Result<std::vector<std::string>> allgather(const std::string& mine) override;

 private:
  TcpBootstrap(int rank, int size, double timeout_s)
      : rank_(rank), size_(size), timeout_s_(timeout_s) {}

  Status gather_ranks(const std::string& host, std::uint16_t port);
  Status reach_root(const std::string& host, std::uint16_t port);
  Result<std::vector<std::string>> allgather_at_root(const std::string& mine);
  void tell_all(const Status& status, const std::string& payload);

  int rank_;
  int size_;
  double timeout_s_;
  std::vector<Fd> peers_;  // rank 0: a socket per rank (its own empty); the others: rank 0's alone
};

}  // namespace hvd
