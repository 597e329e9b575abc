// Selection of the backend of an operation (by device), and on the host which algorithm (by group,
// hosts and bytes): one table, measured (docs/performance.md), overridable. All ranks choose alike:
// it looks at nothing that may differ between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "collective/accelerators.h"
#include "collective/backend/backend.h"
#include "transport/mesh/mesh.h"

namespace hvd {

enum class Algorithm : std::uint8_t {
  kAuto = 0,
  kDirect = 1,        // everybody sends everything to everybody: fewest hand-overs
  kSlices = 2,        // each owner gets its slice from all, folds it, sends it to all: two steps
  kRing = 3,          // 2 (n - 1) steps between neighbours: fewest links
  kHierarchical = 4,  // within the host, between hosts, within the host
};
constexpr int kAlgorithmCount = 5;
const char* name_of(Algorithm algorithm);                 // "auto", "direct", ...
Result<Algorithm> algorithm_of(const std::string& name);  // or a sentence with the names

struct AlgorithmOptions {
  Algorithm allreduce = Algorithm::kAuto;
  // Groups that span hosts fold host by host, with any algorithm (a ring cannot: it becomes
  // hierarchical). Off: in the order of the members, as if all lay on one host, and never
  // hierarchical.
  bool hierarchical_allreduce = true;
  bool hierarchical_allgather = true;
  // From so many hosts on they form a torus (torus.h).
  int torus_hosts = 33;
  // Of a slot, how much is filled at a time; 0: as measured. At most a slot.
  std::size_t segment_bytes = 0;
};

// bytes: of the whole operation. Direct needs a slot with room for all of them: without it,
// what would be chosen if it were more.
Algorithm choose_allreduce(const Topology& topology, const Group& group, std::int64_t bytes,
                           const AlgorithmOptions& options);

class CpuBackend;

class Backends {
 public:
  // open: instead of the plugin's (tests).
  Backends(Mesh& mesh, const AlgorithmOptions& options, const AcceleratorOptions& accelerator = {},
           OpenAccelerator open = nullptr);
  ~Backends();
  Backend& cpu() const;
  CpuBackend& host() const { return *cpu_; }  // the same
  Accelerators& accelerators() { return accelerators_; }
  // Progress-lock owner, between operations, the same on all ranks (autotune).
  void set_options(const AlgorithmOptions& options);

 private:
  std::unique_ptr<CpuBackend> cpu_;
  Accelerators accelerators_;  // after cpu_, which it uses
};

}  // namespace hvd
