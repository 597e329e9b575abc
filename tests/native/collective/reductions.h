// One allreduce on every rank of a cluster, by every algorithm, held against the oracle.
#pragma once

#include <string>
#include <vector>

#include "clusters.h"
#include "oracle.h"

namespace hvd::test {

struct ReduceCase {
  Reduction reduction;
  std::vector<std::size_t> counts;  // fused
  std::vector<int> ranks;           // the group; empty: all
  bool in_place = false;
};

constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kDirect, Algorithm::kSlices,
                                     Algorithm::kRing, Algorithm::kHierarchical};

inline std::uint64_t seed_of(int rank, std::size_t tensor) {
  return static_cast<std::uint64_t>(rank) * 1009 + tensor * 31 + 7;
}

// The hosts of a group's members, numbered by first member; all 0 when folds are not by host.
inline std::vector<int> hosts_of(const Cluster& cluster, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  std::string letters;
  for (const int rank : ranks) {
    const char letter = cluster.hosts.empty() ? 'a' : cluster.hosts[static_cast<std::size_t>(rank)];
    if (letters.find(letter) == std::string::npos) letters += letter;
    const auto number = static_cast<int>(letters.find(letter));
    hosts.push_back(cluster.algorithms.hierarchical_allreduce ? number : 0);
  }
  return hosts;
}

inline std::vector<Bytes> expected_of(const Cluster& cluster, const ReduceCase& given,
                                      const std::vector<int>& ranks) {
  std::vector<Bytes> expected;
  for (std::size_t t = 0; t < given.counts.size(); ++t) {
    std::vector<Bytes> inputs;
    for (const int rank : ranks)
      inputs.push_back(random_elements(given.reduction.dtype, given.counts[t], seed_of(rank, t)));
    expected.push_back(reduced(given.reduction, inputs, hosts_of(cluster, ranks),
                               even_begins(given.counts[t], ranks.size()), cluster.columns));
  }
  return expected;
}

inline void reduce_once(CpuBackend& backend, const Group& group, int rank, const ReduceCase& given,
                        const std::vector<Bytes>& expected) {
  const Dtype dtype = given.reduction.dtype;
  std::vector<Bytes> inputs, outputs;
  std::vector<Operand> operands;
  for (std::size_t t = 0; t < given.counts.size(); ++t) {
    inputs.push_back(random_elements(dtype, given.counts[t], seed_of(rank, t)));
    outputs.emplace_back(inputs[t].size());
    operands.push_back(
        {inputs[t].data(), given.in_place ? inputs[t].data() : outputs[t].data(), given.counts[t]});
  }
  const Status status = backend.allreduce(group, operands, given.reduction);
  REQUIRE(status.message == "");
  for (std::size_t t = 0; t < given.counts.size(); ++t) {
    CHECK((given.in_place ? inputs[t] : outputs[t]) == expected[t]);
    if (!given.in_place)
      CHECK(inputs[t] == random_elements(dtype, given.counts[t], seed_of(rank, t)));
  }
}

// All cases one after the other on the same links.
inline void check_reductions(const Cluster& cluster, const std::vector<ReduceCase>& cases) {
  std::vector<std::vector<int>> groups;
  std::vector<std::vector<Bytes>> expected;
  for (const ReduceCase& given : cases) {
    groups.push_back(given.ranks.empty() ? everybody(cluster.size, 0).ranks : given.ranks);
    expected.push_back(expected_of(cluster, given, groups.back()));
  }
  on_meshes(cluster, [&](int rank, Mesh& mesh) {
    CpuBackend backend(mesh, cluster.algorithms);
    for (const Algorithm algorithm : kAlgorithms) {
      AlgorithmOptions options = cluster.algorithms;
      options.allreduce = algorithm;
      backend.set_options(options);
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::vector<int>& ranks = groups[i];
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        INFO("algorithm ", name_of(algorithm), ", case ", i, ", rank ", rank);
        const Group group = group_of(ranks, rank, static_cast<int>(i));
        reduce_once(backend, group, rank, cases[i], expected[i]);
      }
    }
  });
}

inline Reduction reduction_of(Dtype dtype, ReduceOp op, int size) {
  Reduction reduction{dtype, op, {}};
  if (op == ReduceOp::kAverage) reduction.scaling.divisor = size;
  return reduction;
}

}  // namespace hvd::test
