// Known devices: the devices of ranks, as exchanged at the initialisation of this rank's groups
// (group_init.h). A group's members exchange only their own devices; that a rank outside of the
// group uses one of them, too, is known only from an earlier exchange, or not at all.
#pragma once

#include <vector>

#include "collective/backend/backend.h"
#include "cuda/device/peer_info.h"
#include "transport/mesh/mesh.h"

namespace hvd::cuda {

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
