#include "bench/engine_allreduce.h"

namespace hvd::bench {
namespace {

constexpr std::chrono::seconds kPatience(60);

// One name for all, as a training step has: the agreement knows it after the first time.
Request request_for(const std::vector<Operand>& operands, const Reduction& reduction) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = "bench";
  request.op = reduction.op;
  for (const Operand& operand : operands) {
    TensorMeta meta;
    meta.dtype = reduction.dtype;
    meta.shape = {static_cast<std::int64_t>(operand.count)};
    request.tensors.push_back(std::move(meta));
  }
  return request;
}

}  // namespace

Status allreduce(Engine& engine, const std::vector<Operand>& operands, const Reduction& reduction) {
  const auto handle = engine.enqueue(request_for(operands, reduction), operands, Next::kWaits);
  if (!handle) return handle.status();
  const auto outcome = engine.wait(handle.value(), kPatience);
  if (!outcome) return outcome.status();
  if (outcome.value() != nullptr) return outcome.value()->status;
  return Status::make(Code::kTimeout, "an allreduce is not done after a minute", "bench/engine");
}

}  // namespace hvd::bench
