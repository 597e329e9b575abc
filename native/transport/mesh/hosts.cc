#include "transport/mesh/hosts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>
#include <memory>

namespace hvd {
namespace {

struct Freeifaddrs {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

std::string text_of(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes =
      address.sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  ::inet_ntop(address.sa_family, bytes, text.data(), text.size());
  return text.data();
}

// A link-local address of IPv6 would need the interface's name, too.
bool usable(const ifaddrs& item, int family) {
  if (item.ifa_addr == nullptr || item.ifa_addr->sa_family != family ||
      (item.ifa_flags & IFF_UP) == 0)
    return false;
  return family == AF_INET ||
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(item.ifa_addr)->sin6_addr);
}

}  // namespace

std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {  // no /proc: use the name
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    boot = name.data();
  }
  std::array<char, 64> space{};
  if (::readlink("/proc/self/ns/net", space.data(), space.size() - 1) < 0) space[0] = '\0';
  return boot + "/" + space.data() + "/" + std::to_string(::geteuid());
}

Topology topology_of(int rank, const std::vector<std::string>& hosts) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(hosts.size());
  const std::vector<int> beside = ranks_beside(rank, hosts);
  topology.local_size = static_cast<int>(beside.size());
  for (int i = 0; i < topology.local_size; ++i)
    if (beside[static_cast<std::size_t>(i)] == rank) topology.local_rank = i;
  std::map<std::string, int> numbers;
  for (const std::string& host : hosts)
    topology.host_of.push_back(
        numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  std::map<std::string, int> seen;  // number of earlier ranks per host
  topology.cross_size = 0;
  for (std::size_t other = 0; other < hosts.size(); ++other) {
    const int local = seen[hosts[other]]++;
    if (local != topology.local_rank) continue;
    if (static_cast<int>(other) < rank) ++topology.cross_rank;
    ++topology.cross_size;
  }
  for (const auto& [host, ranks] : seen)
    if (ranks != topology.local_size) topology.homogeneous = false;
  return topology;
}

std::vector<int> ranks_beside(int rank, const std::vector<std::string>& hosts) {
  std::vector<int> beside;
  for (std::size_t other = 0; other < hosts.size(); ++other)
    if (hosts[other] == hosts[static_cast<std::size_t>(rank)])
      beside.push_back(static_cast<int>(other));
  return beside;
}

Result<std::string> listen_address(const std::string& wanted, bool loopback_is_enough) {
  if (wanted.empty() && loopback_is_enough) return std::string("127.0.0.1");
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return std::string("127.0.0.1");
  const std::unique_ptr<ifaddrs, Freeifaddrs> list(found);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* item = found; item != nullptr; item = item->ifa_next) {
      if (!usable(*item, family)) continue;
      const bool loopback = (item->ifa_flags & IFF_LOOPBACK) != 0;
      if (wanted.empty() ? !loopback : wanted == item->ifa_name) return text_of(*item->ifa_addr);
    }
  }
  if (!wanted.empty()) return wanted;  // an address, or a host name
  return Status::make(
      Code::kUnavailable,
      "the ranks are on several hosts, but this host has no address but the loopback; "
      "name one with tcp_interface",
      "transport/hosts");
}

}  // namespace hvd
