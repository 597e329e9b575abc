// Conversion of hvd_request for the engine: read once, checked, copied.
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

// The engine, which knows the ranks, checks the rest (engine/message/validate.h).
Result<Call> call_of(const Engine& engine, const hvd_request* request);

}  // namespace hvd::c_api
