// What a frontend does for one synchronous allreduce: ask for it, and wait, which carries it out.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace hvd::bench {

Status allreduce(Engine& engine, const std::vector<Operand>& operands, const Reduction& reduction);

}  // namespace hvd::bench
