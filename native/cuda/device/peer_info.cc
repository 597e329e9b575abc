#include "cuda/device/peer_info.h"

#include <algorithm>

namespace hvd::cuda {

void KnownDevices::record(const std::vector<PeerInfo>& members) {
  for (const PeerInfo& member : members) {
    const bool is_known = std::any_of(infos_.begin(), infos_.end(), [&](const PeerInfo& known) {
      return known.rank == member.rank && known.uuid == member.uuid;
    });
    if (!is_known) infos_.push_back(member);
  }
}

bool KnownDevices::knows(int rank) const {
  return std::any_of(infos_.begin(), infos_.end(),
                     [&](const PeerInfo& known) { return known.rank == rank; });
}

bool KnownDevices::shares(int rank) const {
  return std::any_of(infos_.begin(), infos_.end(), [&](const PeerInfo& one) {
    return one.rank == rank &&
           std::any_of(infos_.begin(), infos_.end(),
                       [&](const PeerInfo& other) { return share_device(one, other); });
  });
}

void KnownDevices::describe(PeerInfo& mine, const Topology& topology, const Group& group) const {
  for (const PeerInfo& known : infos_)
    if (mine.sharer < 0 && share_device(known, mine)) mine.sharer = known.rank;
  for (int rank = 0; rank < topology.size && mine.silent < 0; ++rank) {
    const bool is_here = topology.host_of[static_cast<std::size_t>(rank)] == mine.host;
    const bool tells = std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end();
    if (is_here && !tells && !knows(rank)) mine.silent = rank;
  }
}

}  // namespace hvd::cuda
