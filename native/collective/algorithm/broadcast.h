// The root's bytes to everybody: written to all by the root itself (star), or passed from member to
// member (chain). A star is one exchange, but the root copies for all.
#pragma once

#include <vector>

#include "collective/backend/communicator_context.h"
#include "collective/backend/plan.h"

namespace hvd {

enum class Shape { kStar, kChain };

Shape broadcast_shape(const CommunicatorContext& context, std::size_t bytes,
                      std::size_t segment_bytes);

// Operands in bytes. The root's own outputs are not written.
Status broadcast(CommunicatorContext& context, const std::vector<Operand>& operands, int root,
                 Shape shape, std::size_t segment_bytes);

}  // namespace hvd
