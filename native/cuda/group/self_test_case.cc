#include "cuda/group/self_test_case.h"

#include <limits>

namespace hvd::cuda {
namespace {

constexpr int kAnyTeam = std::numeric_limits<int>::max();
constexpr int kMostPaired = 64;
const Reduction kSum{Dtype::kFloat32, ReduceOp::kSum, {}};

std::size_t members_of(const Team& team) { return static_cast<std::size_t>(team.size()); }
std::size_t place_of(const Team& team) { return static_cast<std::size_t>(team.place); }
std::size_t share_of(const Team& team, std::size_t count) { return count / members_of(team); }
std::size_t last_of(const Team& team) { return members_of(team) - 1; }

std::byte* at(void* numbers, std::size_t i) {
  return static_cast<std::byte*>(numbers) + i * sizeof(float);
}

float sum(const Team& team, std::size_t /*count*/, std::size_t i) {
  float sum = 0;
  for (std::size_t place = 0; place < members_of(team); ++place) sum += number_of(place, i);
  return sum;
}

Status give_sum(DeviceBackend& backend, const Team& team, const Numbers& numbers) {
  return backend.allreduce(team, {{numbers.in, numbers.out, numbers.count}}, kSum);
}

Status give_broadcast(DeviceBackend& backend, const Team& team, const Numbers& numbers) {
  return backend.broadcast(team, {{numbers.in, numbers.out, numbers.count * sizeof(float)}},
                           static_cast<int>(last_of(team)));
}

float broadcast(const Team& team, std::size_t /*count*/, std::size_t i) {
  return number_of(last_of(team), i);
}

Status give_gather(DeviceBackend& backend, const Team& team, const Numbers& numbers) {
  const std::size_t share = share_of(team, numbers.count);
  Gather gather;
  gather.in = at(numbers.in, 0);
  for (std::size_t place = 0; place < members_of(team); ++place) {
    gather.out.push_back(at(numbers.out, place * share));
    gather.bytes.push_back(share * sizeof(float));
  }
  return backend.allgather(team, {gather});
}

float gather(const Team& team, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(team, count);
  return number_of(i / share, i % share);
}

Status give_exchange(DeviceBackend& backend, const Team& team, const Numbers& numbers) {
  const std::size_t share = share_of(team, numbers.count);
  Exchange exchange;
  for (std::size_t place = 0; place < members_of(team); ++place) {
    exchange.in.push_back(at(numbers.in, place * share));
    exchange.out.push_back(at(numbers.out, place * share));
  }
  exchange.in_bytes.assign(members_of(team), share * sizeof(float));
  exchange.out_bytes = exchange.in_bytes;
  return backend.alltoall(team, exchange);
}

float exchange(const Team& team, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(team, count);
  return number_of(i / share, place_of(team) * share + i % share);
}

Status give_scatter(DeviceBackend& backend, const Team& team, const Numbers& numbers) {
  Scatter scatter{numbers.in, numbers.out, {}};
  for (std::size_t place = 0; place <= members_of(team); ++place)
    scatter.begins.push_back(place * share_of(team, numbers.count));
  return backend.reducescatter(team, {scatter}, kSum);
}

float scatter(const Team& team, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(team, count);
  return i < share ? sum(team, count, place_of(team) * share + i) : 0;
}

}  // namespace

float number_of(std::size_t place, std::size_t i) {
  return static_cast<float>((i * 7 + place * 13) % 251);
}

const std::vector<Exercise>& exercises() {
  static const std::vector<Exercise> kAll = {
      {"sum", kAnyTeam, give_sum, sum},
      {"broadcast", kAnyTeam, give_broadcast, broadcast},
      {"gather", kAnyTeam, give_gather, gather},
      {"exchange", kMostPaired, give_exchange, exchange},
      {"reducescatter", kAnyTeam, give_scatter, scatter},
  };
  return kAll;
}

}  // namespace hvd::cuda
