// One broadcast, allgather or alltoall as one rank sees it, checked to the last byte.
#pragma once

#include <vector>

#include "clusters.h"
#include "oracle.h"

namespace hvd::test {

// What `rank` has of tensor `tensor`, for `to` where that matters.
inline Bytes block_of(int rank, std::size_t tensor, std::size_t bytes, int to = 0) {
  return random_elements(
      Dtype::kUint8, bytes,
      static_cast<std::uint64_t>(rank) * 997 + tensor * 13 + static_cast<std::uint64_t>(to) * 7919);
}

inline void check_broadcast(CpuBackend& backend, const Group& group, int root,
                            const std::vector<std::size_t>& sizes, bool in_place) {
  const int mine = group.ranks[static_cast<std::size_t>(group.group_rank)];
  const int source = group.ranks[static_cast<std::size_t>(root)];
  std::vector<Bytes> inputs, outputs;
  std::vector<Operand> operands;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    inputs.push_back(block_of(mine, t, sizes[t]));
    outputs.emplace_back(sizes[t]);
    operands.push_back(
        {inputs[t].data(), in_place ? inputs[t].data() : outputs[t].data(), sizes[t]});
  }
  const Status status = backend.broadcast(group, operands, root);
  REQUIRE(status.message == "");
  for (std::size_t t = 0; t < sizes.size(); ++t)
    CHECK((in_place ? inputs[t] : outputs[t]) == block_of(source, t, sizes[t]));
}

// Rank r's block of a tensor is (r mod 3) units long.
inline void check_allgather(CpuBackend& backend, const Group& group,
                            const std::vector<std::size_t>& units, bool in_place) {
  std::vector<Bytes> inputs, outputs, expected(units.size());
  std::vector<Gather> tensors(units.size());
  const auto bytes_of = [&](int rank, std::size_t t) {
    return static_cast<std::size_t>(rank % 3) * units[t];
  };
  for (std::size_t t = 0; t < units.size(); ++t) {
    for (const int rank : group.ranks) {
      tensors[t].bytes.push_back(bytes_of(rank, t));
      const Bytes block = block_of(rank, t, bytes_of(rank, t));
      expected[t].insert(expected[t].end(), block.begin(), block.end());
    }
    const int mine = group.ranks[static_cast<std::size_t>(group.group_rank)];
    inputs.push_back(block_of(mine, t, bytes_of(mine, t)));
    outputs.emplace_back(expected[t].size());
  }
  for (std::size_t t = 0; t < units.size(); ++t) {
    std::byte* at = outputs[t].data();
    for (const std::size_t bytes : tensors[t].bytes) {
      tensors[t].out.push_back(at);
      at += bytes;
    }
    std::byte* const own = tensors[t].out[static_cast<std::size_t>(group.group_rank)];
    if (in_place && !inputs[t].empty()) std::memcpy(own, inputs[t].data(), inputs[t].size());
    tensors[t].in = in_place ? own : inputs[t].data();
  }
  const Status status = backend.allgather(group, tensors);
  REQUIRE(status.message == "");
  for (std::size_t t = 0; t < units.size(); ++t) CHECK(outputs[t] == expected[t]);
}

// Sizes by chance, the same on all ranks; every third nothing.
inline std::size_t bytes_between(std::uint64_t seed, int from, int to) {
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(from) * 101 +
                         static_cast<std::uint64_t>(to));
  return random() % 3 == 0 ? 0 : random() % 700;
}

inline void check_alltoall(CpuBackend& backend, const Group& group, std::uint64_t seed) {
  const int mine = group.ranks[static_cast<std::size_t>(group.group_rank)];
  std::vector<Bytes> inputs, outputs;
  for (const int rank : group.ranks) {
    inputs.push_back(block_of(mine, 0, bytes_between(seed, mine, rank), rank));
    outputs.emplace_back(bytes_between(seed, rank, mine));
  }
  Exchange exchange;
  for (std::size_t group_rank = 0; group_rank < inputs.size(); ++group_rank) {
    exchange.in.push_back(inputs[group_rank].data());
    exchange.in_bytes.push_back(inputs[group_rank].size());
    exchange.out.push_back(outputs[group_rank].data());
    exchange.out_bytes.push_back(outputs[group_rank].size());
  }
  const Status status = backend.alltoall(group, exchange);
  REQUIRE(status.message == "");
  for (std::size_t group_rank = 0; group_rank < outputs.size(); ++group_rank) {
    const int rank = group.ranks[group_rank];
    CHECK(outputs[group_rank] == block_of(rank, 0, bytes_between(seed, rank, mine), mine));
  }
}

}  // namespace hvd::test
