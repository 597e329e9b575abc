#include "cuda/group/self_test_case.h"

#include <limits>

namespace hvd::cuda {
namespace {

constexpr int kAnyGroup = std::numeric_limits<int>::max();
constexpr int kMostPaired = 64;
const Reduction kSum{Dtype::kFloat32, ReduceOp::kSum, {}};

std::size_t members_of(const Group& group) { return static_cast<std::size_t>(group.size()); }
std::size_t own_rank(const Group& group) { return static_cast<std::size_t>(group.group_rank); }
std::size_t share_of(const Group& group, std::size_t count) { return count / members_of(group); }
std::size_t last_of(const Group& group) { return members_of(group) - 1; }

std::byte* at(void* numbers, std::size_t i) {
  return static_cast<std::byte*>(numbers) + i * sizeof(float);
}

float sum(const Group& group, std::size_t /*count*/, std::size_t i) {
  float sum = 0;
  for (std::size_t group_rank = 0; group_rank < members_of(group); ++group_rank)
    sum += number_of(group_rank, i);
  return sum;
}

Status enqueue_sum(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  return backend.allreduce(group, {{numbers.in, numbers.out, numbers.count}}, kSum);
}

Status enqueue_broadcast(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  return backend.broadcast(group, {{numbers.in, numbers.out, numbers.count * sizeof(float)}},
                           static_cast<int>(last_of(group)));
}

float broadcast(const Group& group, std::size_t /*count*/, std::size_t i) {
  return number_of(last_of(group), i);
}

Status enqueue_gather(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  const std::size_t share = share_of(group, numbers.count);
  Gather gather;
  gather.in = at(numbers.in, 0);
  for (std::size_t group_rank = 0; group_rank < members_of(group); ++group_rank) {
    gather.out.push_back(at(numbers.out, group_rank * share));
    gather.bytes.push_back(share * sizeof(float));
  }
  return backend.allgather(group, {gather});
}

float gather(const Group& group, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(group, count);
  return number_of(i / share, i % share);
}

Status enqueue_exchange(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  const std::size_t share = share_of(group, numbers.count);
  Exchange exchange;
  for (std::size_t group_rank = 0; group_rank < members_of(group); ++group_rank) {
    exchange.in.push_back(at(numbers.in, group_rank * share));
    exchange.out.push_back(at(numbers.out, group_rank * share));
  }
  exchange.in_bytes.assign(members_of(group), share * sizeof(float));
  exchange.out_bytes = exchange.in_bytes;
  return backend.alltoall(group, exchange);
}

float exchange(const Group& group, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(group, count);
  return number_of(i / share, own_rank(group) * share + i % share);
}

Status enqueue_scatter(DeviceBackend& backend, const Group& group, const Numbers& numbers) {
  Scatter scatter{numbers.in, numbers.out, {}};
  for (std::size_t group_rank = 0; group_rank <= members_of(group); ++group_rank)
    scatter.begins.push_back(group_rank * share_of(group, numbers.count));
  return backend.reducescatter(group, {scatter}, kSum);
}

float scatter(const Group& group, std::size_t count, std::size_t i) {
  const std::size_t share = share_of(group, count);
  return i < share ? sum(group, count, own_rank(group) * share + i) : 0;
}

}  // namespace

float number_of(std::size_t group_rank, std::size_t i) {
  return static_cast<float>((i * 7 + group_rank * 13) % 251);
}

const std::vector<SelfTestCase>& self_test_cases() {
  static const std::vector<SelfTestCase> kAll = {
      {"sum", kAnyGroup, enqueue_sum, sum},
      {"broadcast", kAnyGroup, enqueue_broadcast, broadcast},
      {"gather", kAnyGroup, enqueue_gather, gather},
      {"exchange", kMostPaired, enqueue_exchange, exchange},
      {"reducescatter", kAnyGroup, enqueue_scatter, scatter},
  };
  return kAll;
}

}  // namespace hvd::cuda
