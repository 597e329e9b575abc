// Hosts: which ranks share one, and what follows from it.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// Equal on two ranks exactly when they can share memory: same boot, same network namespace
// (abstract unix sockets), same user.
std::string this_host();

// hosts[r] names the host of rank r.
Topology topology_of(int rank, const std::vector<std::string>& hosts);

// The ranks on the host of `rank`, in order.
std::vector<int> ranks_beside(int rank, const std::vector<std::string>& hosts);

// Where to listen for other hosts: `wanted` may be an address or the name of an interface; empty:
// the loopback when `loopback_is_enough`, else the first address that is not the loopback's, of
// IPv4 where there is one.
Result<std::string> listen_address(const std::string& wanted, bool loopback_is_enough);

}  // namespace hvd
