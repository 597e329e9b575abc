// Known devices: which rank uses which, as this rank has heard at the meetings of its groups
// (group_init.h). A group's members tell each other their own devices; that a rank outside of the
// group uses one of them too is known only from an earlier meeting, or not at all.
#pragma once

#include <vector>

#include "collective/backend/group.h"
#include "cuda/device/peer_info.h"
#include "transport/mesh/mesh.h"

namespace hvd::cuda {

// Progress-lock owner.
class KnownDevices {
 public:
  // What the members of a group have told.
  void hear(const std::vector<PeerInfo>& members);
  // Before a group meets: which rank this one knows to use its device too, as another process, and
  // which rank of its host might (mine.sharer, mine.silent).
  void describe(PeerInfo& mine, const Topology& topology, const Group& group) const;
  // Whether a device of that rank's is known to be another process's too.
  bool shares(int rank) const;

 private:
  bool knows(int rank) const;

  std::vector<PeerInfo> heard_;  // a rank may have told several
};

}  // namespace hvd::cuda
