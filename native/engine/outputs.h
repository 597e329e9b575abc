// From a response and a task to what the backend is asked to do, for the operations whose results
// only the ranks together know the size of: shapes, memory, shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/backend.h"
#include "collective/team.h"
#include "engine/handles.h"
#include "engine/request.h"

namespace hvd {

// Tensor `index` of the task. rows: of every place of the team. The result is added to the task.
Result<Gather> gather_of(Task& task, std::size_t index, const Team& team, const std::int64_t* rows);

// rows: from place p to place q at [p * n + q]. Result and received rows are put into the task.
Result<Exchange> exchange_of(Task& task, const Team& team, const std::vector<std::int64_t>& rows);

// Place p gets rows / n rows, the first rows % n places one more. The result goes where the operand
// says, or is added to the task.
Result<Scatter> scatter_of(Task& task, std::size_t index, const Team& team);

}  // namespace hvd
