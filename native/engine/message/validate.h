// Validation of one rank's own call before anything is sent; errors concern this rank only. Uses
// Horovod's messages where Horovod has them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/visible.h"
#include "collective/backend/plan.h"
#include "engine/message/request.h"

namespace hvd {

// Check a request of any rank. members: size of its set.
Status sensible(const Request& request, std::size_t members, int size);

// One operand for each tensor. members: the ranks of the request's set, ascending; empty: no such
// set.
Status validate(const Request& request, const std::vector<Operand>& operands, int rank, int size,
                const std::vector<int>& members);

// The rows of the first tensor, the same for each member. An error: they are not divisible. Empty
// if validate() reports another error.
HVD_VISIBLE Result<std::vector<std::int64_t>> equal_shares(const Request& request,
                                                           std::size_t members);

}  // namespace hvd
