// Which algorithm and which backend: the names, the rules, and that all ranks choose alike.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "clusters.h"
#include "collective/backend/backend.h"
#include "collective/select.h"
#include "tensor/dtype.h"

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

TEST_CASE("select: names round-trip; an unknown one lists the names") {
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

TEST_CASE("select: hosts of one member each have nothing to fold within a host") {
  const std::vector<int> eight{0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(chosen({0, 1}, 16 << 20, Algorithm::kAuto) == Algorithm::kSlices);
  CHECK(chosen(eight, 16 << 20, Algorithm::kAuto) == Algorithm::kSlices);
  CHECK(chosen(eight, 16 << 20, Algorithm::kHierarchical) == Algorithm::kSlices);
  CHECK(chosen(eight, 16 << 20, Algorithm::kRing) == Algorithm::kRing);
  CHECK(chosen({0, 1, 1}, 16 << 20, Algorithm::kAuto) == Algorithm::kHierarchical);
}

TEST_CASE("select: a link between hosts does not carry all data of all ranks") {
  const std::vector<int> eight{0, 1, 2, 3, 4, 5, 6, 7};
  CHECK(chosen(eight, 8192, Algorithm::kAuto) == Algorithm::kDirect);
  CHECK(chosen(eight, 8196, Algorithm::kAuto) == Algorithm::kSlices);
  CHECK(chosen(std::vector<int>(8, 0), 32768, Algorithm::kAuto) == Algorithm::kDirect);
  CHECK(chosen({0, 1}, 65536, Algorithm::kAuto) == Algorithm::kDirect);
}

TEST_CASE("groups: kept values are found by the whole group, and are not moved") {
  GroupRegistry<std::string> registry;
  const Group pair{1, {0, 2}, 0};
  CHECK(registry.find(pair) == nullptr);
  std::string& kept = registry.add(pair, std::make_unique<std::string>("pair"));
  CHECK(registry.find(Group{1, {0, 2}, 0}) == &kept);
  CHECK(registry.find(Group{1, {0, 3}, 0}) == nullptr);  // the id was given again
  CHECK(registry.find(Group{1, {0, 2}, 1}) == nullptr);
  CHECK(registry.find(Group{2, {0, 2}, 0}) == nullptr);
  for (int id = 2; id < 40; ++id)
    registry.add(Group{id, {0, 1}, 0}, std::make_unique<std::string>("more"));
  CHECK(registry.find(pair) == &kept);
  CHECK(registry.size() == 39);
  std::vector<std::string> all;
  registry.for_each([&](const std::string& one) { all.push_back(one); });
  CHECK(all.size() == 39);
  CHECK(all.front() == "pair");
  registry.clear();
  CHECK(registry.find(pair) == nullptr);
}

}  // namespace hvd::test
