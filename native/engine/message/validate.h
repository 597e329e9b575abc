// Validation of one rank's own call: errors found before anything is sent: for this rank only.
// Horovod's words where Horovod has some.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/visible.h"
#include "collective/backend/plan.h"
#include "engine/message/request.h"

namespace hvd {

// What a request says, whoever makes it. members: how many ranks its set has.
Status sensible(const Request& request, std::size_t members, int size);

// One operand for each tensor. members: the ranks of the request's set, ascending; none: there is
// no such set.
Status validate(const Request& request, const std::vector<Operand>& operands, int rank, int size,
                const std::vector<int>& members);

// The rows of the first tensor, the same for each member. An error: they do not divide. Nothing
// where validate() has another sentence.
HVD_VISIBLE Result<std::vector<std::int64_t>> equal_shares(const Request& request,
                                                           std::size_t members);

}  // namespace hvd
