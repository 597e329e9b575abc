// Bootstrap: how ranks that know nothing of each other but (rank, size) exchange their addresses,
// once, before any link exists. Carriers: TcpBootstrap (a port on rank 0), a Python callable over
// mpi4py or a TCPStore (python/engine_py.cc), threads.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace hvd {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Collective: every rank gives bytes, every rank gets all of them, indexed by rank.
  virtual Result<std::vector<std::string>> allgather(const std::string& mine) = 0;

  // For while ranks wait for each other outside of the bootstrap, which is the first to hear that
  // one of them is gone: a descriptor that can be read then (-1: none), and why.
  virtual int news() const { return -1; }
  virtual Status alive() { return Status::ok(); }
  // Collective: no rank comes back from it before all have come to it, if the carrier can tell.
  virtual Status finish() { return Status::ok(); }
  // This rank leaves without the others, for this reason; they hear it from whoever can tell them.
  virtual void give_up(const Status& /*why*/) {}
};

}  // namespace hvd
