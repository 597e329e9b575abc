// Do all ranks ask for the same thing? Horovod's checks in Horovod's order and Horovod's words; the
// first difference wins.
#pragma once

#include <vector>

#include "base/status.h"
#include "engine/request.h"

namespace hvd {

// by_rank: one request of the same name from every rank. Status.rank: the first rank that differs
// from rank 0.
Status compare(const std::vector<Request>& by_rank);

}  // namespace hvd
