// Ranks that are to meet on the fast path. Where their cores are busy elsewhere they miss each
// other: each stays where it is counted until the others have had a core, and they try until they
// meet.
#pragma once

#include "base/deadline.h"
#include "engine/engines.h"

namespace hvd::test {

// Whether attempt() has said that this rank met the others. The last operation that they agree on
// ends it for all of them.
template <typename Attempt>
bool meet(Engine& engine, const Attempt& attempt) {
  const Armed staying("engine.fast_path_entered:delay=500");
  const Deadline deadline = Deadline::after_seconds(120);
  bool met = false;
  std::vector<float> again{1.0F};
  while (again.front() > 0) {
    met = attempt() || met;
    again.front() = met || deadline.expired() ? 0.0F : 1.0F;
    Request request = request_for<float>("", 1);
    request.op = ReduceOp::kMin;
    CHECK(run(engine, request, {in_place(again)}).status.message == "");
  }
  return met;
}

}  // namespace hvd::test
