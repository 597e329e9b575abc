// Allgather: every member's block to all members. Direct: each sends its block to all. Ring: blocks
// are passed from neighbour to neighbour. By hosts: blocks within the host, whole hosts' blocks
// between one leader per host (its lowest group rank), which distributes them.
#pragma once

#include <vector>

#include "collective/backend/backend.h"
#include "collective/backend/communicator_context.h"

namespace hvd {

enum class GatherAlgorithm { kDirect, kRing, kByHosts };

GatherAlgorithm gather_algorithm(const CommunicatorContext& context,
                                 const std::vector<Gather>& tensors, bool by_hosts);

Status allgather(Mesh& mesh, CommunicatorContext& context, const std::vector<Gather>& tensors,
                 GatherAlgorithm algorithm, std::size_t segment_bytes);

}  // namespace hvd
