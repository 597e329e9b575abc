// Torus allreduce between hosts: rings along the rows of a grid of hosts reduce and scatter, rings
// along its columns reduce the scattered parts, rows gather (Ying et al., 2018,
// https://arxiv.org/abs/1811.06992). n hosts need 2 (rows - 1) + 2 (columns - 1) steps, 512 hosts
// 92 instead of a ring's 1022, with the same bytes on every link. A single line of hosts is a ring.
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/host_grid.h"
#include "collective/backend/plan.h"
#include "tensor/reduce.h"

namespace hvd {

// The exchange between hosts: this rank and the workers with the same slices on other hosts.
struct HostParts {
  std::vector<int> workers;                  // group ranks, by host
  std::vector<std::vector<Operand>> chunks;  // by host: the slices whose home it is, in place
};

// The parts, unscaled, become results, in the order of Order::fold_hosts.
Status torus(Mesh& mesh, const CommunicatorContext& context, const HostParts& parts,
             const HostGrid& grid, Reduction reduction, std::size_t segment_bytes);

}  // namespace hvd
