// One synchronous allreduce as a frontend does it: ask for it, and wait, which carries it out.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace hvd::bench {

Status allreduce(Engine& engine, const std::vector<Operand>& operands, const Reduction& reduction);

}  // namespace hvd::bench
