#include "collective/select.h"

#include <string>

#include "collective/cpu_backend.h"

namespace hvd {
namespace {

constexpr const char* kNames[kAlgorithmCount] = {"auto", "direct", "slices", "ring",
                                                 "hierarchical"};

// Up to how many members, up to how many bytes: direct; from how many members on: ring.
struct Row {
  int members;
  std::int64_t direct_bytes;
};
constexpr Row kTable[] = {{2, 65536}, {4, 65536}, {8, 32768}, {32, 4096}};
constexpr int kRingFrom = 33;

bool spans_hosts(const Topology& topology, const Group& group) {
  const auto host = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
  for (const int rank : group.ranks) {
    if (host(rank) != host(group.ranks.front())) return true;
  }
  return false;
}

Algorithm measured(int members, std::int64_t bytes, bool by_host) {
  for (const Row& row : kTable) {
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
  const bool by_host = several && options.hierarchical_allreduce;
  switch (options.allreduce) {
    case Algorithm::kAuto:
      return measured(group.size(), bytes, by_host);
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
