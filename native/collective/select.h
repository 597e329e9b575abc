// Selection of the backend of an operation (by device) and, on the host, of the algorithm (by
// group, hosts and bytes): one measured table (docs/performance.md), overridable. All ranks make
// the same choice, because it depends on nothing that may differ between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "collective/accelerator.h"
#include "collective/backend/backend.h"
#include "transport/mesh/mesh.h"

namespace hvd {

enum class Algorithm : std::uint8_t {
  kAuto = 0,
  kDirect = 1,  // all members send everything to all: fewest exchanges
  kSlices = 2,  // each owner receives its slice from all, folds it, sends it to all: two steps
  kRing = 3,    // 2 (n - 1) steps between neighbours: fewest links
  kHierarchical = 4,  // within the host, between hosts, within the host
};
constexpr int kAlgorithmCount = 5;
const char* name_of(Algorithm algorithm);                 // "auto", "direct", ...
Result<Algorithm> algorithm_of(const std::string& name);  // or an error that lists the names

struct AlgorithmOptions {
  Algorithm allreduce = Algorithm::kAuto;
  // Groups that span hosts fold host by host, with any algorithm (a ring cannot: it becomes
  // hierarchical). Off: fold in the order of the members, as on one host, and never hierarchically.
  bool hierarchical_allreduce = true;
  bool hierarchical_allgather = true;
  // With at least this many hosts they form a torus (algorithms.h).
  int torus_hosts = 33;
  // Number of bytes of a slot that are filled at a time; 0: as measured. At most a slot.
  std::size_t segment_bytes = 0;
};

// bytes: of the whole operation. Direct needs a slot with room for all of them; otherwise
// the algorithm for more bytes is chosen.
Algorithm choose_allreduce(const Topology& topology, const Group& group, std::int64_t bytes,
                           const AlgorithmOptions& options);

class CpuBackend;

class Backends {
 public:
  // open: replaces the plugin's function (tests).
  Backends(Mesh& mesh, const AlgorithmOptions& options, const AcceleratorOptions& accelerator = {},
           OpenAccelerator open = nullptr);
  ~Backends();
  Backend& cpu() const;
  CpuBackend& host() const { return *cpu_; }  // cpu(), with its type
  Accelerators& accelerators() { return accelerators_; }
  // Progress-lock owner, between operations, the same on all ranks (autotune).
  void set_options(const AlgorithmOptions& options);

 private:
  std::unique_ptr<CpuBackend> cpu_;
  Accelerators accelerators_;  // after cpu_, which it uses
};

}  // namespace hvd
