// What one rank's own call can do wrong, found before anything is sent: invalid arguments, for this
// rank only.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/plan.h"
#include "engine/request.h"

namespace hvd {

Status validate(const Request& request, const std::vector<Operand>& operands, int size);

}  // namespace hvd
