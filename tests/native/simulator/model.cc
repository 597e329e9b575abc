#include "simulator/model.h"

#include <algorithm>
#include <utility>

namespace hvd::sim {
namespace {

// With its batch norm.
void convolution(std::vector<std::int64_t>& sizes, std::int64_t in, std::int64_t out,
                 std::int64_t kernel) {
  for (const std::int64_t size : {in * out * kernel * kernel, out, out}) sizes.push_back(size);
}

int hosts_of(int ranks) { return (ranks + kRanksPerHost - 1) / kRanksPerHost; }

// 2 (n - 1) steps; in each of them everybody hands a chunk to the next.
void ring(std::vector<double>& at, double step) {
  const std::size_t n = at.size();
  std::vector<double> next(n);
  for (std::size_t round = 0; round < 2 * (n - 1); ++round) {
    next[0] = std::max(at[0], at[n - 1]) + step;
    for (std::size_t i = 1; i < n; ++i) next[i] = std::max(at[i], at[i - 1]) + step;
    at.swap(next);
  }
}

double ring_step(const Costs& costs, std::size_t members, std::int64_t bytes) {
  return costs.alpha + 2 * costs.o +
         costs.beta * static_cast<double>(bytes) / static_cast<double>(members);
}

double slices(const Costs& costs, int ranks, std::int64_t bytes) {
  const int local = std::min(ranks, kRanksPerHost);
  return costs.o + costs.local_beta * static_cast<double>(bytes) * (local - 1) / local;
}

}  // namespace

std::vector<std::int64_t> resnet50() {
  std::vector<std::int64_t> sizes;
  convolution(sizes, 3, 64, 7);
  std::int64_t in = 64;
  const std::pair<int, std::int64_t> stages[] = {{3, 64}, {4, 128}, {6, 256}, {3, 512}};
  for (const auto& [blocks, width] : stages) {
    for (int block = 0; block < blocks; ++block) {
      convolution(sizes, in, width, 1);
      convolution(sizes, width, width, 3);
      convolution(sizes, width, 4 * width, 1);
      if (block == 0) convolution(sizes, in, 4 * width, 1);
      in = 4 * width;
    }
  }
  sizes.push_back(2048 * 1000);
  sizes.push_back(1000);
  for (std::int64_t& size : sizes) size *= 4;
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<double> finish(Algorithm algorithm, const Costs& costs, std::vector<double> begin,
                           std::int64_t bytes) {
  if (begin.size() == 1) return begin;
  if (algorithm == Algorithm::kRing) {
    ring(begin, ring_step(costs, begin.size(), bytes));
    return begin;
  }
  const int ranks = static_cast<int>(begin.size());
  std::vector<double> hosts(static_cast<std::size_t>(hosts_of(ranks)), 0);
  for (std::size_t rank = 0; rank < begin.size(); ++rank) {
    double& host = hosts[rank / kRanksPerHost];
    host = std::max(host, begin[rank]);
  }
  const double local = slices(costs, ranks, bytes);
  for (double& host : hosts) host += local;
  if (hosts.size() > 1) ring(hosts, ring_step(costs, hosts.size(), bytes));
  for (std::size_t rank = 0; rank < begin.size(); ++rank) {
    begin[rank] = hosts[rank / kRanksPerHost] + local;
  }
  return begin;
}

double bound(Algorithm algorithm, const Costs& costs, int ranks, std::int64_t bytes) {
  if (ranks == 1) return 0;
  const bool flat = algorithm == Algorithm::kRing;
  const int members = flat ? ranks : hosts_of(ranks);
  const double across =
      2 * (members - 1) * ring_step(costs, static_cast<std::size_t>(members), bytes);
  return across + (flat ? 0 : 2 * slices(costs, ranks, bytes));
}

}  // namespace hvd::sim
