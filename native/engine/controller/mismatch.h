// Consistency checks of the ranks' requests: Horovod's checks in Horovod's order and wording,
// followed by what each rank requested; the first difference wins.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"

namespace hvd {

// Compare the requests of all ranks for one name. Status.rank: the first rank that differs from the
// lowest one.
Status compare(Variants variants);

std::string ranks_text(const std::vector<int>& ranks);  // "rank 3", "ranks 0-2, 5"

}  // namespace hvd
