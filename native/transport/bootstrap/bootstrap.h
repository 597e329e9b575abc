// Bootstrap: ranks that know only (rank, size) exchange their addresses, once, before any link
// exists. Carriers: TcpBootstrap (a port on rank 0), a Python callable over mpi4py or a TCPStore
// (python/engine_py.cc), threads.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace hvd {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Collective: every rank contributes bytes and receives all of them, indexed by rank.
  virtual Result<std::vector<std::string>> allgather(const std::string& mine) = 0;

  // For waits outside of the bootstrap, which is the first to notice a lost rank: a descriptor that
  // becomes readable then (-1: none), and the error.
  virtual int news() const { return -1; }
  virtual Status alive() { return Status::ok(); }
  // Collective: no rank returns before all ranks have called it, if the carrier supports that.
  virtual Status finish() { return Status::ok(); }
  // This rank gives up for this reason, which the carrier reports to the other ranks if possible.
  virtual void give_up(const Status& /*why*/) {}
};

}  // namespace hvd
