#include "tf/registration.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tf/call.h"
#include "tf/collectives.h"
#include "tf/core.h"
#include "tf/foreign.h"
#include "tf/memory.h"

namespace hvd::tf {
namespace {

// Shapes of results, as far as they are known while a graph is traced.

constexpr auto kUnknown = static_cast<std::size_t>(-1);

bool good(TF_Status* status) { return tf()->GetCode(status) == 0; }

int tensors(TF_ShapeInferenceContext* context) {
  return static_cast<int>(tf()->ShapeInferenceContextNumInputs(context)) - 1;  // without the ticket
}

// [rows, ...] -> [?, ...]; an unknown shape stays unknown.
void other_rows_of(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const Shape input(tf()->NewShapeHandle()), rest(tf()->NewShapeHandle()),
      output(tf()->NewShapeHandle());
  tf()->ShapeInferenceContextGetInput(context, index, input.get(), status);
  if (!good(status)) return;
  if (tf()->ShapeInferenceContextRankKnown(context, input.get()) == 0) {
    return tf()->ShapeInferenceContextSetOutput(context, index, input.get(), status);
  }
  const std::int64_t rank = tf()->ShapeInferenceContextRank(context, input.get());
  if (rank == 0) {
    return tf()->SetStatus(status, static_cast<int>(Code::kInvalidArgument),
                           "a scalar has no rows; reshape it to [1]");
  }
  tf()->ShapeInferenceContextSubshape(context, input.get(), 1, rank, rest.get(), status);
  if (!good(status)) return;
  const Shape rows(tf()->ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf()->ShapeInferenceContextConcatenateShapes(context, rows.get(), rest.get(), output.get(),
                                               status);
  if (good(status)) tf()->ShapeInferenceContextSetOutput(context, index, output.get(), status);
}

// Shapes of the inputs, without the ticket.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf()->NewShapeHandle());
  for (int i = 0; i < tensors(context) && good(status); ++i) {
    tf()->ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (good(status)) tf()->ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

// Shapes with an unknown first dimension.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  for (int i = 0; i < tensors(context) && good(status); ++i) other_rows_of(context, i, status);
}

// The same, and a vector.
void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  other_rows_of(context, 0, status);
  if (!good(status)) return;
  const Shape received(tf()->ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf()->ShapeInferenceContextSetOutput(context, 1, received.get(), status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf()->ShapeInferenceContextScalar(context));
  tf()->ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void vector(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape shape(tf()->ShapeInferenceContextVectorFromSize(context, kUnknown));
  tf()->ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void no_output(TF_ShapeInferenceContext* /*context*/, TF_Status* /*status*/) {}

// Kernels that query the engine and move no data: size, rank and the like. They run whenever the
// graph runs, so that a graph that was traced before another init() is correct after it.
struct EngineQuery {
  explicit EngineQuery(TF_OpKernelConstruction* construction);
  std::int32_t set;
};

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

// query(engine, set): the number; negative: no such set, or this rank is not a member.
template <typename Query>
void answer(void* kernel, TF_OpKernelContext* context, Query query) {
  const Engine engine;
  if (!engine) return fail(context, not_initialized());
  const std::int32_t set = static_cast<EngineQuery*>(kernel)->set;
  if (core()->set_size(engine.get(), set) == 0) {
    return fail(context,
                {Code::kInvalidArgument, "there is no process set " + std::to_string(set)});
  }
  const std::int32_t value = query(engine.get(), set);
  if (value < 0) {
    return fail(context, {Code::kInvalidArgument,
                          "this rank is not a member of process set " + std::to_string(set)});
  }
  put(context, value);
}

EngineQuery::EngineQuery(TF_OpKernelConstruction* construction) {
  const Status status;
  std::int64_t id = 0;
  tf()->OpKernelConstruction_GetAttrInt64(construction, "process_set_id", &id, status.get());
  set = status ? static_cast<std::int32_t>(id) : 0;
}

void size(void* kernel, TF_OpKernelContext* context) { answer(kernel, context, core()->set_size); }
void rank(void* kernel, TF_OpKernelContext* context) { answer(kernel, context, core()->set_rank); }
void local_size(void* kernel, TF_OpKernelContext* context) {
  answer(kernel, context,
         [](hvd_engine* engine, std::int32_t) { return core()->local_size(engine); });
}
void local_rank(void* kernel, TF_OpKernelContext* context) {
  answer(kernel, context,
         [](hvd_engine* engine, std::int32_t) { return core()->local_rank(engine); });
}
void included(void* kernel, TF_OpKernelContext* context) {
  answer(kernel, context, [](hvd_engine* engine, std::int32_t set) {
    return core()->set_rank(engine, set) < 0 ? 0 : 1;
  });
}

// No bytes: the input that keeps TensorFlow from evaluating a collective of constants once and for
// all, and from merging two equal ones. It is stateful, the collectives are not: those would be
// executed one after another.
void ticket(void* /*kernel*/, TF_OpKernelContext* context) {
  const std::int64_t none = 0;
  const Status status;
  const Tensor tensor(tf()->AllocateOutput(context, 0, kUint8, &none, 1, 0, status.get()));
  if (!status) fail(context, status);
}

// No output: counts a step of training each time it runs.
void step(void* /*kernel*/, TF_OpKernelContext* /*context*/) { count(&counters.steps); }

// No output: adds its input to the number of samples.
void samples(void* /*kernel*/, TF_OpKernelContext* context) {
  Tensor number;
  if (const Status status = input(context, 0, &number); !status) return fail(context, status);
  if (tf()->NumDims(number.get()) != 0) {
    return fail(context, {Code::kInvalidArgument, "the number of samples must be a scalar"});
  }
  count(&counters.samples, *static_cast<const std::int64_t*>(tf()->TensorData(number.get())));
}

struct Op {
  const char* type;
  std::vector<std::string> attributes, inputs, outputs;
  ShapeFunction shape;
  bool stateful;
};

// Errors of the registration.
std::string& trouble() {
  static std::string text;
  return text;
}
void add_trouble(const std::string& error) { trouble() += (trouble().empty() ? "" : "; ") + error; }

void define(const Op& op) {
  TF_OpDefinitionBuilder* const builder = tf()->NewOpDefinitionBuilder(op.type);
  for (const std::string& attribute : op.attributes)
    tf()->OpDefinitionBuilderAddAttr(builder, attribute.c_str());
  for (const std::string& input : op.inputs)
    tf()->OpDefinitionBuilderAddInput(builder, input.c_str());
  for (const std::string& output : op.outputs)
    tf()->OpDefinitionBuilderAddOutput(builder, output.c_str());
  tf()->OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shape);
  if (op.stateful) tf()->OpDefinitionBuilderSetIsStateful(builder, true);  // false does the same
  const Status status;
  tf()->RegisterOpDefinition(builder, status.get());
  if (!status) add_trouble(std::string(op.type) + ": " + status.text());
}

void in_host_memory(TF_KernelBuilder* builder, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    tf()->KernelBuilder_HostMemory(builder, argument.substr(0, argument.find(':')).c_str());
}

// Also on a GPU, with all data in host memory, to which TensorFlow copies them. Kernels of the CPU
// must not request that: no input's memory would become an output's.
template <typename Build>
void implement(const Op& op, Build build) {
  for (const bool gpu : {false, true}) {
    TF_KernelBuilder* const builder = build(gpu ? "GPU" : "CPU");
    if (gpu) in_host_memory(builder, op.inputs);
    if (gpu) in_host_memory(builder, op.outputs);
    const Status status;
    tf()->RegisterKernelBuilder(op.type, builder, status.get());
    if (!status) add_trouble(std::string(op.type) + ": " + status.text());
  }
}

template <typename Kernel, std::int32_t kKind>
void* make_collective(TF_OpKernelConstruction* construction) {
  return std::unique_ptr<Collective>(new Kernel(kKind, Attributes(construction))).release();
}
void compute_collective(void* kernel, TF_OpKernelContext* context,
                        TF_AsyncOpKernelDoneCallback* done) {
  static_cast<Collective*>(kernel)->compute(context, done);
}
void delete_collective(void* kernel) {
  const std::unique_ptr<Collective> deleted(static_cast<Collective*>(kernel));
}

template <typename Kernel, std::int32_t kKind>
void add_collective(const Op& op) {
  define(op);
  implement(op, [&op](const char* device) {
    return tf()->NewAsyncKernelBuilder(op.type, device, make_collective<Kernel, kKind>,
                                       compute_collective, delete_collective);
  });
}

void* make_query(TF_OpKernelConstruction* construction) {
  return std::make_unique<EngineQuery>(construction).release();
}
void delete_query(void* kernel) {
  const std::unique_ptr<EngineQuery> deleted(static_cast<EngineQuery*>(kernel));
}

void add_query(const char* type, std::vector<std::string> attributes,
               std::vector<std::string> outputs, ShapeFunction shape, Compute compute,
               std::vector<std::string> inputs = {}) {
  const Op op{type, std::move(attributes), std::move(inputs), std::move(outputs), shape, true};
  define(op);
  implement(op, [&](const char* device) {
    return tf()->NewKernelBuilder(type, device, make_query, compute, delete_query);
  });
}

#define HVD_TF_TYPES                                                                            \
  "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool, complex64, " \
  "complex128, uint32, uint64}"
constexpr const char* kOne = "T: " HVD_TF_TYPES;
constexpr const char* kSeveral = "T: list(" HVD_TF_TYPES ") >= 1";
#undef HVD_TF_TYPES
constexpr const char* kSet = "process_set_id: int = 0";
constexpr const char* kScope = "ignore_name_scope: bool = false";
constexpr const char* kOp = "reduce_op: int = 1";
constexpr const char* kRoot = "root_rank: int = 0";
constexpr const char* kBefore = "prescale_bits: int = 4607182418800017408";  // 1.0
constexpr const char* kAfter = "postscale_bits: int = 4607182418800017408";
constexpr const char* kTicket = "ticket: uint8";
// Distinguishes two nodes with the same inputs, which TensorFlow does not do by name.
constexpr const char* kNumber = "number: int = 0";

// A collective of one tensor, and of several that are executed together.
template <typename Kernel, std::int32_t kKind>
void add_both(const char* single, const char* grouped, std::vector<std::string> attributes,
              ShapeFunction shape) {
  attributes.insert(attributes.end(), {kNumber, kOne});
  add_collective<Kernel, kKind>(
      {single, attributes, {"tensor: T", kTicket}, {"output: T"}, shape, false});
  attributes.back() = kSeveral;
  add_collective<Kernel, kKind>(
      {grouped, attributes, {"tensors: T", kTicket}, {"outputs: T"}, shape, false});
}

void add_all() {
  const std::vector<std::string> reducing{kOp, kBefore, kAfter, kSet, kScope};
  add_both<Elementwise, HVD_ALLREDUCE>("HvdAllreduce", "HvdGroupedAllreduce", reducing,
                                       same_shapes);
  add_both<Scattered, HVD_REDUCESCATTER>("HvdReducescatter", "HvdGroupedReducescatter", reducing,
                                         other_rows);
  add_both<Gathered, HVD_ALLGATHER>("HvdAllgather", "HvdGroupedAllgather", {kSet, kScope},
                                    other_rows);
  add_both<Elementwise, HVD_BROADCAST>("HvdBroadcast", "HvdGroupedBroadcast", {kRoot, kSet, kScope},
                                       same_shapes);
  add_collective<Exchanged, HVD_ALLTOALL>({"HvdAlltoall",
                                           {kSet, kScope, kNumber, kOne},
                                           {"tensor: T", "splits: int32", kTicket},
                                           {"output: T", "received_splits: int32"},
                                           exchanged_rows,
                                           false});
  add_collective<Met, HVD_BARRIER>({"HvdBarrier", {kSet}, {}, {}, no_output, true});
  add_collective<Joined, HVD_JOIN>({"HvdJoin", {}, {}, {"last: int32"}, scalar, true});
  add_query("HvdSize", {kSet}, {"size: int32"}, scalar, size);
  add_query("HvdRank", {kSet}, {"rank: int32"}, scalar, rank);
  add_query("HvdLocalSize", {}, {"local_size: int32"}, scalar, local_size);
  add_query("HvdLocalRank", {}, {"local_rank: int32"}, scalar, local_rank);
  add_query("HvdProcessSetIncluded", {kSet}, {"included: int32"}, scalar, included);
  add_query("HvdTicket", {}, {kTicket}, vector, ticket);
  add_query("HvdStep", {}, {}, no_output, step);
  add_query("HvdSamples", {}, {}, no_output, samples, {"samples: int64"});
}

}  // namespace

std::string register_all() {
  trouble() = find_tensorflow();
  if (trouble().empty()) add_all();
  return trouble();
}

}  // namespace hvd::tf
