// One operation on device memory, held against the same operation on host memory by CpuBackend: the
// same bytes, on every rank.
#pragma once

#include <cstring>
#include <vector>

#include "cuda/rings.h"

namespace hvd::cuda::test {

using hvd::test::random_elements;

// What an operation's inputs are: other for another seed.
using Maker = Bytes (*)(Dtype, ReduceOp, std::size_t count, std::uint64_t seed);

// Any bits: for backends that sum in the host's order.
inline Bytes any_elements(Dtype dtype, ReduceOp /*op*/, std::size_t count, std::uint64_t seed) {
  return random_elements(dtype, count, seed);
}

struct ReduceCase {
  Reduction reduction;
  std::vector<std::size_t> counts;  // fused
  bool in_place = false;
};

inline std::uint64_t seed_of(int rank, std::size_t tensor) {
  return static_cast<std::uint64_t>(rank) * 1009 + tensor * 31 + 7;
}

// Inputs and outputs of one operation, in host and in device memory.
struct Tensors {
  std::vector<Bytes> host_in, host_out;
  std::vector<OnDevice> in, out;

  void add(Rank& rank, const Bytes& input, std::size_t out_bytes) {
    host_in.push_back(input);
    host_out.emplace_back(out_bytes);
    in.emplace_back(rank, input);
    out.emplace_back(rank, Bytes(out_bytes, std::byte{0x5a}));
  }
};

inline void check_allreduce(Rank& rank, DeviceBackend& ring, const Group& group,
                            const ReduceCase& given, Maker make = any_elements) {
  const auto& [dtype, op, scaling] = given.reduction;
  Tensors tensors;
  std::vector<Operand> host, device;
  for (std::size_t t = 0; t < given.counts.size(); ++t) {
    const std::size_t count = given.counts[t];
    tensors.add(rank, make(dtype, op, count, seed_of(rank.number(), t)), count * size_of(dtype));
    device.push_back({tensors.in[t].data(),
                      given.in_place ? tensors.in[t].data() : tensors.out[t].data(), count});
  }
  for (std::size_t t = 0; t < given.counts.size(); ++t)
    host.push_back({tensors.host_in[t].data(), tensors.host_out[t].data(), given.counts[t]});
  const Status status = ring.allreduce(group, device, given.reduction);
  REQUIRE(status.message == "");
  REQUIRE(rank.cpu().allreduce(group, host, given.reduction).message == "");
  for (std::size_t t = 0; t < given.counts.size(); ++t) {
    CHECK((given.in_place ? tensors.in[t] : tensors.out[t]).read() == tensors.host_out[t]);
    if (!given.in_place) CHECK(tensors.in[t].read() == tensors.host_in[t]);
  }
}

// shares: elements of each member, of every tensor.
inline void check_reducescatter(Rank& rank, DeviceBackend& ring, const Group& group,
                                const Reduction& reduction,
                                const std::vector<std::vector<std::size_t>>& shares,
                                Maker make = any_elements) {
  const std::size_t width = size_of(reduction.dtype);
  const auto group_rank = static_cast<std::size_t>(group.group_rank);
  Tensors tensors;
  std::vector<Scatter> host, device;
  for (std::size_t t = 0; t < shares.size(); ++t) {
    std::vector<std::size_t> begins{0};
    for (const std::size_t share : shares[t]) begins.push_back(begins.back() + share);
    tensors.add(rank, make(reduction.dtype, reduction.op, begins.back(), seed_of(rank.number(), t)),
                shares[t][group_rank] * width);
    device.push_back({tensors.in[t].data(), tensors.out[t].data(), begins});
    host.push_back({nullptr, nullptr, begins});
  }
  for (std::size_t t = 0; t < shares.size(); ++t) {
    host[t].in = tensors.host_in[t].data();
    host[t].out = tensors.host_out[t].data();
  }
  REQUIRE(ring.reducescatter(group, device, reduction).message == "");
  REQUIRE(rank.cpu().reducescatter(group, host, reduction).message == "");
  for (std::size_t t = 0; t < shares.size(); ++t) {
    CHECK(tensors.out[t].read() == tensors.host_out[t]);
    CHECK(tensors.in[t].read() == tensors.host_in[t]);
  }
}

inline Bytes block_of(int rank, std::size_t tensor, std::size_t bytes, int to = 0) {
  return random_elements(Dtype::kUint8, bytes,
                         seed_of(rank, tensor) + static_cast<std::uint64_t>(to) * 7919);
}

inline void check_broadcast(Rank& rank, DeviceBackend& ring, const Group& group, int root,
                            const std::vector<std::size_t>& sizes, bool in_place) {
  Tensors tensors;
  std::vector<Operand> operands;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    tensors.add(rank, block_of(rank.number(), t, sizes[t]), sizes[t]);
    operands.push_back(
        {tensors.in[t].data(), in_place ? tensors.in[t].data() : tensors.out[t].data(), sizes[t]});
  }
  REQUIRE(ring.broadcast(group, operands, root).message == "");
  const int source = group.ranks[static_cast<std::size_t>(root)];
  for (std::size_t t = 0; t < sizes.size(); ++t)
    CHECK((in_place ? tensors.in[t] : tensors.out[t]).read() == block_of(source, t, sizes[t]));
}

// Rank r's block of a tensor is (r mod 3) units long.
inline void check_allgather(Rank& rank, DeviceBackend& ring, const Group& group,
                            const std::vector<std::size_t>& units, bool in_place) {
  const auto own = static_cast<std::size_t>(group.group_rank);
  Tensors tensors;
  std::vector<Gather> gathers(units.size());
  std::vector<Bytes> expected(units.size());
  for (std::size_t t = 0; t < units.size(); ++t) {
    for (const int member : group.ranks) {
      const Bytes block = block_of(member, t, static_cast<std::size_t>(member % 3) * units[t]);
      gathers[t].bytes.push_back(block.size());
      expected[t].insert(expected[t].end(), block.begin(), block.end());
    }
    const Bytes mine = block_of(rank.number(), t, gathers[t].bytes[own]);
    Bytes out(expected[t].size(), std::byte{0x5a});
    std::size_t before = 0;
    for (std::size_t group_rank = 0; group_rank < own; ++group_rank)
      before += gathers[t].bytes[group_rank];
    if (in_place && !mine.empty()) std::memcpy(out.data() + before, mine.data(), mine.size());
    tensors.in.emplace_back(rank, mine);
    tensors.out.emplace_back(rank, out);
  }
  for (std::size_t t = 0; t < units.size(); ++t) {
    std::byte* at = tensors.out[t].data();
    for (const std::size_t bytes : gathers[t].bytes) {
      gathers[t].out.push_back(at);
      at += bytes;
    }
    gathers[t].in = in_place ? gathers[t].out[own] : tensors.in[t].data();
  }
  REQUIRE(ring.allgather(group, gathers).message == "");
  for (std::size_t t = 0; t < units.size(); ++t) CHECK(tensors.out[t].read() == expected[t]);
}

// Sizes by chance, the same on all ranks; every third nothing.
inline std::size_t bytes_between(std::uint64_t seed, int from, int to) {
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(from) * 101 +
                         static_cast<std::uint64_t>(to));
  return random() % 3 == 0 ? 0 : random() % 3000;
}

inline void check_alltoall(Rank& rank, DeviceBackend& ring, const Group& group,
                           std::uint64_t seed) {
  const int mine = rank.number();
  Tensors tensors;
  Exchange exchange;
  for (const int member : group.ranks) {
    const std::size_t to = bytes_between(seed, mine, member);
    const std::size_t from = bytes_between(seed, member, mine);
    tensors.add(rank, block_of(mine, 0, to, member), from);
    exchange.in.push_back(tensors.in.back().data());
    exchange.in_bytes.push_back(to);
    exchange.out.push_back(tensors.out.back().data());
    exchange.out_bytes.push_back(from);
  }
  REQUIRE(ring.alltoall(group, exchange).message == "");
  for (std::size_t group_rank = 0; group_rank < group.ranks.size(); ++group_rank) {
    const int from = group.ranks[group_rank];
    CHECK(tensors.out[group_rank].read() ==
          block_of(from, 0, bytes_between(seed, from, mine), mine));
  }
}

}  // namespace hvd::cuda::test
