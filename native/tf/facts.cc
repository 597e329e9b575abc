#include "tf/facts.h"

#include <string>

#include "tf/call.h"
#include "tf/core.h"
#include "tf/memory.h"

namespace hvd::tf {
namespace {

constexpr int kUint8 = 4;

void fail(TF_OpKernelContext* context, const Status& status) {
  tf()->OpKernelContext_Failure(context, status.get());
}

void put(TF_OpKernelContext* context, std::int32_t value) {
  const Status status;
  const Tensor tensor(
      tf()->AllocateOutput(context, 0, kInt32, nullptr, 0, sizeof(value), status.get()));
  if (!status) return fail(context, status);
  *static_cast<std::int32_t*>(tf()->TensorData(tensor.get())) = value;
}

// ask(engine, set): the number, or below 0: there is no such set, or this rank is not in it.
template <typename Ask>
void answer(void* fact, TF_OpKernelContext* context, Ask ask) {
  const Engine engine;
  if (!engine) return fail(context, not_initialized());
  const std::int32_t set = static_cast<Fact*>(fact)->set;
  if (core()->set_size(engine.get(), set) == 0) {
    return fail(context,
                {Code::kInvalidArgument, "there is no process set " + std::to_string(set)});
  }
  const std::int32_t value = ask(engine.get(), set);
  if (value < 0) {
    return fail(context, {Code::kInvalidArgument,
                          "this rank is not a member of process set " + std::to_string(set)});
  }
  put(context, value);
}

}  // namespace

Fact::Fact(TF_OpKernelConstruction* construction) {
  const Status status;
  std::int64_t given = 0;
  tf()->OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &given, status.get());
  set = status ? static_cast<std::int32_t>(given) : 0;
}

void size(void* fact, TF_OpKernelContext* context) { answer(fact, context, core()->set_size); }
void rank(void* fact, TF_OpKernelContext* context) { answer(fact, context, core()->set_rank); }
void local_size(void* fact, TF_OpKernelContext* context) {
  answer(fact, context,
         [](hvd_engine* engine, std::int32_t) { return core()->local_size(engine); });
}
void local_rank(void* fact, TF_OpKernelContext* context) {
  answer(fact, context,
         [](hvd_engine* engine, std::int32_t) { return core()->local_rank(engine); });
}
void included(void* fact, TF_OpKernelContext* context) {
  answer(fact, context, [](hvd_engine* engine, std::int32_t set) {
    return core()->set_rank(engine, set) < 0 ? 0 : 1;
  });
}

void ticket(void* /*fact*/, TF_OpKernelContext* context) {
  const std::int64_t none = 0;
  const Status status;
  const Tensor tensor(tf()->AllocateOutput(context, 0, kUint8, &none, 1, 0, status.get()));
  if (!status) fail(context, status);
}

void step(void* /*fact*/, TF_OpKernelContext* /*context*/) { count(&counters.steps); }

void samples(void* /*fact*/, TF_OpKernelContext* context) {
  Tensor number;
  if (const Status status = input(context, 0, &number); !status) return fail(context, status);
  if (tf()->NumDims(number.get()) != 0) {
    return fail(context, {Code::kInvalidArgument, "the number of samples must be a scalar"});
  }
  count(&counters.samples, *static_cast<const std::int64_t*>(tf()->TensorData(number.get())));
}

}  // namespace hvd::tf
