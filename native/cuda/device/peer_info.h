// Peer info: exchanged by the members of a group at its initialisation (group_init.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "collective/backend/backend.h"
#include "cuda/device/device.h"
#include "transport/mesh/mesh.h"

namespace hvd::cuda {

constexpr std::size_t kMostReachable = 16;

// Sent as plain bytes.
struct PeerInfo {
  std::int32_t rank = 0;
  std::int32_t host = 0;  // Topology::host_of
  std::int64_t pid = 0;
  std::uint64_t process = 0;  // random; equal: ranks are threads of one process
  Uuid uuid{};                // of its device
  std::array<Uuid, kMostReachable> reachable{};
  std::uint32_t reachables = 0;
  std::uint32_t word_operations = 0;  // 1: supported
  std::int32_t nccl = 0;              // version; 0: none here
  std::array<char, 12> operations{};  // the setting: "auto", ...
  std::uint64_t arena_bytes = 0;      // the setting
  std::array<char, 12> ring{};        // the setting of the ring's algorithm (ring_backend.h)
  std::uint32_t multiprocessors = 0;
  std::uint32_t time_limit = 0;     // 1: the driver ends kernels that run for seconds
  std::int32_t sharer = -1;         // a rank of another process on this device; -1: none is known
  std::int32_t silent = -1;         // a rank of this host whose device is not known; -1: none
  std::array<char, 256> trouble{};  // not empty: why this member can use no backend
};

// Truncated if too long.
template <std::size_t n>
void put(std::array<char, n>& to, const std::string& text) {
  to.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), n - 1), to.data());
}

// A peer's text, which need not be terminated.
template <std::size_t n>
std::string text_in(const std::array<char, n>& from) {
  return {from.begin(), std::find(from.begin(), from.end(), '\0')};
}

// True for different processes on one device, whose kernels may never run concurrently.
inline bool share_device(const PeerInfo& one, const PeerInfo& other) {
  return one.host == other.host && one.uuid == other.uuid && one.process != other.process;
}

inline std::string rank_of(const PeerInfo& member) { return "rank " + std::to_string(member.rank); }

// The message for the first pair of members with a problem, or "".
template <typename Trouble>
std::string of_pairs(const std::vector<PeerInfo>& members, const Trouble& trouble) {
  for (const PeerInfo& one : members)
    for (const PeerInfo& other : members)
      if (std::string why = trouble(one, other); !why.empty()) return why;
  return "";
}

// Known devices: the devices of ranks, as exchanged at the initialisation of this rank's groups
// (group_init.h). A group's members exchange only their own devices; that a rank outside of the
// group uses one of them, too, is known only from an earlier exchange, or not at all.

// Progress-lock owner.
class KnownDevices {
 public:
  // Record the infos of a group's members.
  void record(const std::vector<PeerInfo>& members);
  // Before the exchange of a group: set the rank that is known to use this rank's device, too, as
  // another process, and a rank of its host that might (mine.sharer, mine.silent).
  void describe(PeerInfo& mine, const Topology& topology, const Group& group) const;
  // True if a device of that rank is known to be used by another process, too.
  bool shares(int rank) const;

 private:
  bool knows(int rank) const;

  std::vector<PeerInfo> infos_;  // several per rank are possible
};

}  // namespace hvd::cuda
