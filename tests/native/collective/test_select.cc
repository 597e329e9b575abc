// Which algorithm and which backend: the names, the rules, and that all ranks choose alike.
#include <doctest/doctest.h>

#include "clusters.h"
#include "collective/select.h"
#include "tensor/view.h"

namespace hvd::test {
namespace {

Topology topology_of(const std::vector<int>& hosts) {
  Topology topology;
  topology.size = static_cast<int>(hosts.size());
  topology.host_of = hosts;
  return topology;
}

Algorithm chosen(const std::vector<int>& hosts, std::int64_t bytes, Algorithm told,
                 bool hierarchical = true) {
  AlgorithmOptions options;
  options.allreduce = told;
  options.hierarchical_allreduce = hierarchical;
  const Group group = everybody(static_cast<int>(hosts.size()), 0);
  return choose_allreduce(topology_of(hosts), group, bytes, options);
}

}  // namespace

TEST_CASE("select: names there and back; an unknown one is told the names") {
  for (int number = 0; number < kAlgorithmCount; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    const Result<Algorithm> back = algorithm_of(name_of(algorithm));
    REQUIRE(back.is_ok());
    CHECK(back.value() == algorithm);
  }
  const Status status = algorithm_of("tree").status();
  CHECK(status.code == Code::kInvalidArgument);
  CHECK(status.message ==
        "no algorithm is called tree; there are auto, direct, slices, ring, hierarchical");
}

TEST_CASE("select: small operations direct, large ones in slices, many ranks in a ring") {
  CHECK(chosen({0, 0}, 4, Algorithm::kAuto) == Algorithm::kDirect);
  CHECK(chosen({0, 0}, 16 << 20, Algorithm::kAuto) == Algorithm::kSlices);
  CHECK(chosen(std::vector<int>(8, 0), 1 << 20, Algorithm::kAuto) == Algorithm::kSlices);
  CHECK(chosen(std::vector<int>(100, 0), 4, Algorithm::kAuto) == Algorithm::kRing);
}

TEST_CASE("select: teams that span hosts") {
  const std::vector<int> two{0, 0, 1, 1};
  CHECK(chosen(two, 4, Algorithm::kAuto) == Algorithm::kDirect);
  CHECK(chosen(two, 16 << 20, Algorithm::kAuto) == Algorithm::kHierarchical);
  CHECK(chosen(two, 16 << 20, Algorithm::kRing) == Algorithm::kHierarchical);
  CHECK(chosen(two, 16 << 20, Algorithm::kSlices) == Algorithm::kSlices);
  CHECK(chosen(two, 16 << 20, Algorithm::kAuto, false) == Algorithm::kSlices);
  CHECK(chosen(two, 16 << 20, Algorithm::kRing, false) == Algorithm::kRing);
  CHECK(chosen(two, 16 << 20, Algorithm::kHierarchical, false) == Algorithm::kSlices);
  CHECK(chosen({0, 0}, 16 << 20, Algorithm::kHierarchical) == Algorithm::kSlices);
}

}  // namespace hvd::test
