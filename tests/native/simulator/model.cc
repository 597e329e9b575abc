#include "simulator/model.h"

#include <algorithm>

#include "collective/backend/order.h"

namespace hvd::sim {
namespace {

int hosts_of(const Costs& costs, int ranks) {
  return (ranks + costs.ranks_per_host - 1) / costs.ranks_per_host;
}

// In each step every rank sends a chunk to the next one.
void ring(std::vector<double>& at, std::size_t steps, double step) {
  const std::size_t n = at.size();
  std::vector<double> next(n);
  for (std::size_t round = 0; round < steps; ++round) {
    next[0] = std::max(at[0], at[n - 1]) + step;
    for (std::size_t i = 1; i < n; ++i) next[i] = std::max(at[i], at[i - 1]) + step;
    at.swap(next);
  }
}

double ring_step(const Costs& costs, std::size_t members, std::int64_t bytes) {
  return costs.alpha + 2 * costs.o +
         costs.beta * static_cast<double>(bytes) / static_cast<double>(members);
}

// These hosts are a ring.
void ring_of(std::vector<double>& hosts, const std::vector<int>& members, std::size_t steps,
             double step) {
  std::vector<double> at;
  at.reserve(members.size());
  for (const int host : members) at.push_back(hosts[static_cast<std::size_t>(host)]);
  ring(at, steps, step);
  for (std::size_t i = 0; i < at.size(); ++i) hosts[static_cast<std::size_t>(members[i])] = at[i];
}

// As the torus of collective/algorithm/algorithms.h.
void torus(const Costs& costs, std::vector<double>& hosts, std::int64_t bytes) {
  const HostGrid grid = host_grid(static_cast<int>(hosts.size()), 0);
  const auto rows = static_cast<std::size_t>(grid.rows);
  const auto columns = static_cast<std::size_t>(grid.columns);
  const double step = ring_step(costs, columns, bytes);
  if (grid.is_line()) return ring(hosts, 2 * (columns - 1), step);
  const auto along_rows = [&] {
    for (int row = 0; row < grid.rows; ++row) ring_of(hosts, grid.row(row), columns - 1, step);
  };
  along_rows();
  const double within = ring_step(costs, hosts.size(), bytes);
  for (int column = 0; column < grid.columns; ++column)
    ring_of(hosts, grid.column(column), 2 * (rows - 1), within);
  along_rows();
}

// What a phase of an exchange takes beside the way of its last message: everybody sends so many
// bytes in so many messages, and receives as many; link and CPU work at once.
double phase(const Costs& costs, double messages, double bytes) {
  return std::max(costs.beta * bytes, 2 * costs.o * messages);
}

// Every rank continues once it has a message of every rank.
void exchange(const Costs& costs, std::vector<double>& at, double taken) {
  const auto last = std::max_element(at.begin(), at.end());
  const double first = *last, who = static_cast<double>(last - at.begin());
  double second = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (static_cast<double>(i) != who) second = std::max(second, at[i]);
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double others = static_cast<double>(i) == who ? second : first;
    at[i] = std::max(at[i], others + costs.alpha + 2 * costs.o) + taken;
  }
}

// Between hosts: each of a host's ranks has its share of the bytes, and a message for every other
// host at a time.
double host_phase(const Costs& costs, int ranks, int hosts, std::int64_t bytes) {
  const double local = std::min(ranks, costs.ranks_per_host);
  const double batches = std::max(1.0, static_cast<double>(bytes) / (local * costs.segment));
  return phase(costs, batches * (hosts - 1), static_cast<double>(bytes) * (hosts - 1) / hosts);
}

double direct_phase(const Costs& costs, int ranks, std::int64_t bytes) {
  return phase(costs, ranks - 1, static_cast<double>(bytes) * (ranks - 1));
}

double slices(const Costs& costs, int ranks, std::int64_t bytes) {
  const int local = std::min(ranks, costs.ranks_per_host);
  if (local == 1) return 0;
  return costs.o + costs.local_beta * static_cast<double>(bytes) * (local - 1) / local;
}

}  // namespace

std::vector<double> finish(Algorithm algorithm, const Costs& costs, std::vector<double> begin,
                           std::int64_t bytes) {
  if (begin.size() == 1) return begin;
  if (algorithm == Algorithm::kRing) {
    ring(begin, 2 * (begin.size() - 1), ring_step(costs, begin.size(), bytes));
    return begin;
  }
  const int ranks = static_cast<int>(begin.size());
  if (algorithm == Algorithm::kDirect) {
    exchange(costs, begin, direct_phase(costs, ranks, bytes));
    return begin;
  }
  const auto per_host = static_cast<std::size_t>(costs.ranks_per_host);
  std::vector<double> hosts(static_cast<std::size_t>(hosts_of(costs, ranks)), 0);
  for (std::size_t rank = 0; rank < begin.size(); ++rank) {
    double& host = hosts[rank / per_host];
    host = std::max(host, begin[rank]);
  }
  const double local = slices(costs, ranks, bytes);
  for (double& host : hosts) host += local;
  const double taken = host_phase(costs, ranks, static_cast<int>(hosts.size()), bytes);
  const bool many = hosts.size() >= costs.torus_hosts;
  if (many) torus(costs, hosts, bytes);
  for (int phases = 0; phases < 2 && hosts.size() > 1 && !many; ++phases)
    exchange(costs, hosts, taken);
  for (std::size_t rank = 0; rank < begin.size(); ++rank) {
    begin[rank] = hosts[rank / per_host] + local;
  }
  return begin;
}

double bound(Algorithm algorithm, const Costs& costs, int ranks, std::int64_t bytes) {
  const std::vector<double> together(static_cast<std::size_t>(ranks), 0);
  if (algorithm != Algorithm::kRing) return finish(algorithm, costs, together, bytes).front();
  return ranks == 1 ? 0 : 2 * (ranks - 1) * ring_step(costs, together.size(), bytes);
}

}  // namespace hvd::sim
