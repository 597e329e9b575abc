// Which way the members of a team take, from what they told each other: a pure function, so all
// choose alike.
//   ring     our own, over memory that the members map: one host, every device reachable from every
//            other (or the same one), word operations in streams
//   nccl     one device per rank, the same NCCL on all: between hosts, and where devices of one
//            host do not reach each other
//   staged   over host memory: always possible
// auto: the first of these that is possible. ring, nccl and staged mean that way, or an error that
// says which rank cannot, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "cuda/device.h"

namespace hvd::cuda {

enum class Way : std::uint8_t { kRing = 0, kNccl = 1, kStaged = 2 };
const char* name_of(Way way);  // "ring", "nccl", "staged"

constexpr std::size_t kMostReachable = 16;

// What a member tells the others: plain bytes.
struct Facts {
  std::int32_t rank = 0;
  std::int32_t host = 0;  // Topology::host_of
  std::int64_t pid = 0;
  std::uint64_t process = 0;  // random; the same: ranks are threads of one process
  Uuid uuid{};                // of its device
  std::array<Uuid, kMostReachable> reachable{};
  std::uint32_t reachables = 0;
  std::uint32_t word_operations = 0;  // 1: they work
  std::int32_t nccl = 0;              // version; 0: none here
  std::array<char, 12> operations{};  // the setting: "auto", ...
  std::uint64_t arena_bytes = 0;      // the setting
  std::array<char, 12> ring{};        // the setting of the ring's form (ring_form.h)
  std::uint32_t multiprocessors = 0;
  std::uint32_t shared_contexts = 0;  // 1: MPS makes one of the contexts of all processes
  std::array<char, 256> trouble{};    // not empty: why this member can take no way
};

// The ways to try, in this order; at least one. The same on all members.
Result<std::vector<Way>> choose(const std::vector<Facts>& members);

}  // namespace hvd::cuda
