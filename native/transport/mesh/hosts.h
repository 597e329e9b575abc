// Hosts: which ranks share a host, and the topology.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// Equal on two ranks if and only if they can share memory: same boot, same network namespace
// (abstract unix sockets), same user.
std::string this_host();

// hosts[r] names the host of rank r.
Topology topology_of(int rank, const std::vector<std::string>& hosts);

// The ranks on the host of `rank`, in order.
std::vector<int> ranks_beside(int rank, const std::vector<std::string>& hosts);

// The address to listen on for other hosts. `wanted` is an address or the name of an interface;
// empty: the loopback if `loopback_is_enough`, else the first other address, preferably IPv4.
Result<std::string> listen_address(const std::string& wanted, bool loopback_is_enough);

}  // namespace hvd
