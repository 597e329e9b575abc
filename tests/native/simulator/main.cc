// Prints how the agreement and the reduction of ResNet-50's gradients scale, as CSV:
//   simulator [ranks ...]          (default 2 8 64 512 4096)
// Every row is a step whose names are all in the response cache.
//   gradients     "burst": all asked for at once; "backward": one by one over 100 ms
//   limit_ms      backward and the bound of the algorithm, whichever is longer
// Or what a blocking allreduce of so many bytes takes among hosts of one rank each, call after
// call:
//   simulator --calls HOSTS LATENCY_NS NS_PER_BYTE NS_PER_MESSAGE BYTES ...
// Or how efficient a step of known networks is, its gradients coming evenly over the backward pass:
//   simulator --networks RANKS RANKS_PER_HOST NS_PER_BYTE
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "collective/select.h"
#include "simulator/cluster.h"

namespace hvd::sim {
namespace {

struct Shape {
  const char* name;
  int fanout;  // 0: as many as there are ranks
};

void row(int ranks, const Shape& shape, Algorithm algorithm, double backward) {
  Setting setting;
  setting.ranks = ranks;
  setting.fanout = shape.fanout == 0 ? ranks : shape.fanout;
  setting.algorithm = algorithm;
  setting.backward = backward;
  Cluster cluster(setting);
  cluster.step();
  const Step step = cluster.step();
  std::int64_t bytes = 0;
  for (const std::int64_t size : resnet50()) bytes += size;
  char negotiation[32] = "";  // when gradients come one by one, it hides behind them
  if (backward == 0) {
    std::snprintf(negotiation, sizeof negotiation, "%.3f", step.negotiation * 1e-6);
  }
  const double limit = std::max(backward, bound(algorithm, setting.costs, ranks, bytes));
  std::printf("%d,%s,%s,%s,%lld,%d,%lld,%s,%d,%.3f,%.3f\n", ranks, shape.name,
              algorithm == Algorithm::kRing ? "ring" : "hierarchical",
              backward > 0 ? "backward" : "burst", static_cast<long long>(step.most_messages),
              step.most_rank, static_cast<long long>(step.messages), negotiation, step.operations,
              step.time * 1e-6, limit * 1e-6);
  std::fflush(stdout);
}

// What the core chooses for ranks that all are on hosts of their own.
Algorithm chosen(int hosts, std::int64_t bytes) {
  Topology topology;
  Group group;
  topology.host_of.resize(static_cast<std::size_t>(hosts));
  std::iota(topology.host_of.begin(), topology.host_of.end(), 0);
  group.ranks = topology.host_of;
  switch (choose_allreduce(topology, group, bytes, {})) {
    case hvd::Algorithm::kDirect:
      return Algorithm::kDirect;
    case hvd::Algorithm::kRing:
      return Algorithm::kRing;
    default:
      return Algorithm::kHierarchical;
  }
}

void calls(int hosts, Costs costs, std::int64_t bytes) {
  costs.ranks_per_host = 1;
  Setting setting;
  setting.ranks = hosts;
  setting.fanout = kDefaultFanout;
  setting.algorithm = chosen(hosts, bytes);
  setting.costs = costs;
  setting.jitter = 0;
  setting.tensors = {bytes};
  setting.calls = 20;
  Cluster cluster(setting);
  cluster.step();
  std::printf("%lld,%.9f\n", static_cast<long long>(bytes),
              cluster.step().time * 1e-9 / setting.calls);
}

// False: the arguments are others.
bool calls(int argc, char** argv) {
  if (argc < 7 || std::strcmp(argv[1], "--calls") != 0) return false;
  Costs costs;
  costs.alpha = std::atof(argv[3]);
  costs.beta = std::atof(argv[4]);
  costs.o = std::atof(argv[5]);
  std::printf("bytes,seconds\n");
  for (int i = 6; i < argc; ++i) calls(std::atoi(argv[2]), costs, std::atoll(argv[i]));
  return true;
}

void network(const Network& trained, int ranks, const Costs& costs) {
  Setting setting;
  setting.ranks = ranks;
  setting.fanout = kDefaultFanout;
  setting.costs = costs;
  setting.backward = trained.backward();
  setting.tensors = trained.tensors;
  Cluster cluster(setting);
  cluster.step();
  const double step = trained.step - trained.backward() + cluster.step().time;
  std::printf("%s,%.1f,%.1f,%.3f\n", trained.name.c_str(), trained.step * 1e-6, step * 1e-6,
              trained.step / step);
}

// False: the arguments are others.
bool of_networks(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[1], "--networks") != 0) return false;
  Costs costs;
  costs.ranks_per_host = std::atoi(argv[3]);
  costs.beta = std::atof(argv[4]);
  std::printf("network,alone_ms,step_ms,efficiency\n");
  for (const Network& each : networks()) network(each, std::atoi(argv[2]), costs);
  return true;
}

}  // namespace
}  // namespace hvd::sim

int main(int argc, char** argv) {
  using hvd::sim::Algorithm;
  if (hvd::sim::calls(argc, argv) || hvd::sim::of_networks(argc, argv)) return 0;
  std::vector<int> sizes{2, 8, 64, 512, 4096};
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(std::max(1, std::atoi(argv[i])));
  std::printf(
      "ranks,fanout,algorithm,gradients,messages_of_busiest,busiest,messages,negotiation_ms,"
      "operations,step_ms,limit_ms\n");
  for (const int ranks : sizes) {
    for (const hvd::sim::Shape shape : {hvd::sim::Shape{"star", 0}, {"16", 16}, {"64", 64}}) {
      for (const double backward : {0.0, 100e6}) {
        hvd::sim::row(ranks, shape, Algorithm::kHierarchical, backward);
      }
    }
    hvd::sim::row(ranks, {"64", 64}, Algorithm::kRing, 0);
  }
  return 0;
}
