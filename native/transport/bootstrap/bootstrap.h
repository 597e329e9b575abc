// How ranks that know nothing of each other but (rank, size) exchange their addresses, once, before
// any link exists. Carriers: TcpBootstrap (a port on rank 0), a Python callable over mpi4py or a
// TCPStore (python/engine_py.cc), threads.
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
};

}  // namespace hvd
