#include "collective/select.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "collective/backend/order.h"
#include "collective/cpu_backend.h"

namespace hvd {
namespace {

constexpr const char* kNames[kAlgorithmCount] = {"auto", "direct", "slices", "ring",
                                                 "hierarchical"};

// Direct for at most `members` and `bytes`; ring with at least that many members.
struct Row {
  int members;
  std::int64_t direct_bytes;
};
using Table = std::array<Row, 4>;
constexpr Table kOneHost{{{2, 65536}, {4, 65536}, {8, 32768}, {32, 4096}}};
// Between hosts direct saves the latency of one message, and each link carries (n - 1)(1 - 2 / n)
// times more bytes. The bandwidth-delay product is similar for many links: 62 KB at 10 Gbit/s and
// 50 us as at 100 Gbit/s and 5 us.
constexpr Table kSeveralHosts{{{2, 65536}, {4, 32768}, {8, 8192}, {32, 2048}}};
constexpr int kRingFrom = 33;

int host_of(const Topology& topology, int rank) {
  return topology.host_of[static_cast<std::size_t>(rank)];
}

bool spans_hosts(const Topology& topology, const Group& group) {
  const int first = host_of(topology, group.ranks.front());
  return std::any_of(group.ranks.begin(), group.ranks.end(),
                     [&](int rank) { return host_of(topology, rank) != first; });
}

int hosts_of(const Topology& topology, const Group& group) {
  std::vector<int> hosts;
  hosts.reserve(group.ranks.size());
  for (const int rank : group.ranks) hosts.push_back(host_of(topology, rank));
  std::sort(hosts.begin(), hosts.end());
  return static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
}

// True if members are folded host by host. If each has its own host there is nothing to fold within
// hosts, but between the hosts of a grid there is.
bool folds_by_host(const Topology& topology, const Group& group, const AlgorithmOptions& options) {
  if (!options.hierarchical_allreduce) return false;
  const int hosts = hosts_of(topology, group);
  return hosts < group.size() || !host_grid(hosts, options.torus_hosts).is_line();
}

Algorithm measured(int members, std::int64_t bytes, const Table& table, bool by_host) {
  for (const Row& row : table) {
    if (members > row.members) continue;
    if (bytes <= row.direct_bytes) return Algorithm::kDirect;
    break;
  }
  if (by_host) return Algorithm::kHierarchical;
  return members >= kRingFrom ? Algorithm::kRing : Algorithm::kSlices;
}

}  // namespace

const char* name_of(Algorithm algorithm) { return kNames[static_cast<int>(algorithm)]; }

Result<Algorithm> algorithm_of(const std::string& name) {
  std::string names;
  for (int number = 0; number < kAlgorithmCount; ++number) {
    if (name == kNames[number]) return static_cast<Algorithm>(number);
    names += std::string(number == 0 ? "" : ", ") + kNames[number];
  }
  return Status::make(Code::kInvalidArgument,
                      "no algorithm is called " + name + "; there are " + names,
                      "collective/select");
}

Algorithm choose_allreduce(const Topology& topology, const Group& group, std::int64_t bytes,
                           const AlgorithmOptions& options) {
  const bool several = spans_hosts(topology, group);
  const bool by_host = several && folds_by_host(topology, group, options);
  switch (options.allreduce) {
    case Algorithm::kAuto:
      return measured(group.size(), bytes, several ? kSeveralHosts : kOneHost, by_host);
    case Algorithm::kRing:  // a ring cannot fold host by host
      return by_host ? Algorithm::kHierarchical : Algorithm::kRing;
    case Algorithm::kHierarchical:
      return by_host ? Algorithm::kHierarchical : Algorithm::kSlices;
    default:
      return options.allreduce;
  }
}

Backends::Backends(Mesh& mesh, const AlgorithmOptions& options,
                   const AcceleratorOptions& accelerator, OpenAccelerator open)
    : cpu_(std::make_unique<CpuBackend>(mesh, options)),
      accelerators_(mesh, *cpu_, accelerator, open) {}

Backends::~Backends() = default;

Backend& Backends::cpu() const { return *cpu_; }

void Backends::set_options(const AlgorithmOptions& options) { cpu_->set_options(options); }

}  // namespace hvd
