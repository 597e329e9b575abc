// An operation that fails in its middle on one rank: the others end with the abort that it raises,
// none waits forever.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>

#include "base/failpoint.h"
#include "clusters.h"

namespace hvd::test {
namespace {

struct Failing {
  const char* point;
  Algorithm algorithm;
  const char* hosts;
  std::size_t count;
};

constexpr Failing kFailing[] = {
    {"collective.direct_sent", Algorithm::kDirect, "aaa", 10},
    {"collective.slices_filled", Algorithm::kSlices, "aaa", 5000},
    {"collective.slices_folded", Algorithm::kSlices, "aaa", 5000},
    {"collective.ring_step", Algorithm::kRing, "aaa", 5000},
    {"collective.host_input", Algorithm::kHierarchical, "aabb", 5000},
    {"collective.host_part", Algorithm::kHierarchical, "aabb", 5000},
    {"collective.host_fold", Algorithm::kHierarchical, "aabb", 5000},
    {"collective.host_spread", Algorithm::kHierarchical, "aabb", 5000},
};

// Like the engine: a failed operation is reported to all ranks.
Status reduce_and_tell(Mesh& mesh, const Failing& failing, int size, int rank) {
  AlgorithmOptions options;
  options.allreduce = failing.algorithm;
  CpuBackend backend(mesh, options);
  std::vector<float> values(failing.count);
  const Status status =
      backend.allreduce(everybody(size, rank), {{values.data(), values.data(), values.size()}}, {});
  if (!status && !mesh.abort().raised()) mesh.raise_everywhere(status);
  return status;
}

}  // namespace

TEST_CASE("failpoints: every step of an allreduce may fail; no rank is left waiting") {
  for (const Failing& failing : kFailing) {
    CAPTURE(failing.point);
    Cluster cluster = cluster_of(static_cast<int>(std::strlen(failing.hosts)), 256);
    cluster.hosts = failing.hosts;
    arm_failpoints((std::string(failing.point) + ":fail@2").c_str());
    std::atomic<int> failed{0};
    on_meshes(cluster, [&](int rank, Mesh& mesh) {
      const Status status = reduce_and_tell(mesh, failing, cluster.size, rank);
      if (!status) ++failed;
      if (!status) CHECK(status.message == std::string("failpoint ") + failing.point);
    });
    arm_failpoints("");
    CHECK(failed.load() > 0);
  }
}

}  // namespace hvd::test
