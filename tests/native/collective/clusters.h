// Ranks for the tests of the collectives: as threads over links in memory, or over the mesh that
// processes use, with shared memory, with TCP, on hosts that are names only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/cpu_backend.h"
#include "ranks.h"
#include "transport/mesh/mesh.h"

namespace hvd::test {

struct Cluster {
  int size = 2;
  std::string hosts;      // a letter per rank; empty: all on one. Needs connect_mesh.
  std::string transport;  // empty: threads over links in memory
  MeshOptions mesh;
  AlgorithmOptions algorithms;
  int columns = 0;  // of the grid that its hosts form; 0: they form none
};

// Small slots, so that small tensors go round the slots many times.
inline Cluster cluster_of(int size, std::size_t slot_bytes = 256, std::size_t slots = 4) {
  Cluster cluster;
  cluster.size = size;
  cluster.mesh.slot_bytes = slot_bytes;
  cluster.mesh.slots = slots;
  return cluster;
}

// body(rank, mesh) on a thread per rank.
inline void on_meshes(const Cluster& cluster, const std::function<void(int, Mesh&)>& body) {
  if (cluster.hosts.empty() && cluster.transport.empty()) {
    const auto meshes = make_local_meshes(cluster.size, cluster.mesh);
    run_ranks(cluster.size, [&](int rank) { body(rank, *meshes[static_cast<std::size_t>(rank)]); });
    return;
  }
  Meeting meeting(cluster.size);
  run_ranks(cluster.size, [&](int rank) {
    MeshOptions options = cluster.mesh;
    options.flush_s = 60;  // a reader may get no core for a while
    options.transport = cluster.transport.empty() ? "auto" : cluster.transport;
    if (!cluster.hosts.empty())
      options.host = std::string("host-") + cluster.hosts[static_cast<std::size_t>(rank)];
    ThreadBootstrap bootstrap(meeting, rank);
    auto mesh = connect_mesh(rank, cluster.size, bootstrap, options);
    REQUIRE(mesh.status().message == "");
    body(rank, *mesh.value());
    mesh.value()->leave();
  });
}

inline Group group_of(const std::vector<int>& ranks, int rank, int id = 0) {
  Group group;
  group.id = id;
  for (const int member : ranks) {
    if (member == rank) group.group_rank = group.size();
    group.ranks.push_back(member);
  }
  return group;
}

inline Group everybody(int size, int rank) {
  std::vector<int> ranks;
  for (int member = 0; member < size; ++member) ranks.push_back(member);
  return group_of(ranks, rank);
}

}  // namespace hvd::test
