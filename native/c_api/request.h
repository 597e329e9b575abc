// hvd_request as the engine takes it: read once, checked, copied.
#pragma once

#include <vector>

#include "base/status.h"
#include "c_api/hvd_core.h"
#include "engine/engine.h"

namespace hvd::c_api {

struct Call {
  Request request;
  std::vector<Operand> operands;
  void* stream = nullptr;
  hvd_done done = nullptr;
  void* context = nullptr;
};

// The rest is the engine's to check (engine/message/validate.h), which knows the ranks.
Result<Call> call_of(const Engine& engine, const hvd_request* given);

}  // namespace hvd::c_api
