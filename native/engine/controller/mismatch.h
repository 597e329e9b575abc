// Do all ranks ask for the same thing? Horovod's checks in Horovod's order and Horovod's words, and
// after them what each rank asked for; the first difference wins.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"

namespace hvd {

// Who asks for what under one name, by rank. Status.rank: the first rank that differs from the
// lowest one.
Status compare(Variants variants);

std::string ranks_text(const std::vector<int>& ranks);  // "rank 3", "ranks 0-2, 5"

}  // namespace hvd
