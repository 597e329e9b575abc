#include "tf/registration.h"

#include <memory>
#include <vector>

#include "tf/collectives.h"
#include "tf/facts.h"
#include "tf/foreign.h"
#include "tf/shapes.h"

namespace hvd::tf {
namespace {

struct Op {
  const char* type;
  std::vector<std::string> attributes, inputs, outputs;
  ShapeFunction shape;
  bool stateful;
};

// Why not all was registered.
std::string& trouble() {
  static std::string text;
  return text;
}
void note(const std::string& what) { trouble() += (trouble().empty() ? "" : "; ") + what; }

void define(const Op& op) {
  TF_OpDefinitionBuilder* const builder = tf()->NewOpDefinitionBuilder(op.type);
  for (const std::string& each : op.attributes)
    tf()->OpDefinitionBuilderAddAttr(builder, each.c_str());
  for (const std::string& each : op.inputs)
    tf()->OpDefinitionBuilderAddInput(builder, each.c_str());
  for (const std::string& each : op.outputs)
    tf()->OpDefinitionBuilderAddOutput(builder, each.c_str());
  tf()->OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shape);
  if (op.stateful) tf()->OpDefinitionBuilderSetIsStateful(builder, true);  // false does the same
  const Status status;
  tf()->RegisterOpDefinition(builder, status.get());
  if (!status) note(std::string(op.type) + ": " + status.text());
}

void in_host_memory(TF_KernelBuilder* builder, const std::vector<std::string>& arguments) {
  for (const std::string& each : arguments)
    tf()->KernelBuilder_HostMemory(builder, each.substr(0, each.find(':')).c_str());
}

// On a GPU too, with everything in the memory of the host, to which TensorFlow copies it. The CPU's
// kernels must not ask for that: no input's memory would become an output's.
template <typename Build>
void implement(const Op& op, Build build) {
  for (const bool gpu : {false, true}) {
    TF_KernelBuilder* const builder = build(gpu ? "GPU" : "CPU");
    if (gpu) in_host_memory(builder, op.inputs);
    if (gpu) in_host_memory(builder, op.outputs);
    const Status status;
    tf()->RegisterKernelBuilder(op.type, builder, status.get());
    if (!status) note(std::string(op.type) + ": " + status.text());
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

void* make_fact(TF_OpKernelConstruction* construction) {
  return std::make_unique<Fact>(construction).release();
}
void delete_fact(void* fact) { const std::unique_ptr<Fact> deleted(static_cast<Fact*>(fact)); }

void add_fact(const char* type, std::vector<std::string> attributes,
              std::vector<std::string> outputs, ShapeFunction shape, Compute compute,
              std::vector<std::string> inputs = {}) {
  const Op op{type, std::move(attributes), std::move(inputs), std::move(outputs), shape, true};
  define(op);
  implement(op, [&](const char* device) {
    return tf()->NewKernelBuilder(type, device, make_fact, compute, delete_fact);
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
// What TensorFlow tells two nodes apart by that have the same inputs: not their names.
constexpr const char* kNumber = "number: int = 0";

// A collective of one tensor, and of several that are carried out together.
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
  add_fact("HvdSize", {kSet}, {"size: int32"}, scalar, size);
  add_fact("HvdRank", {kSet}, {"rank: int32"}, scalar, rank);
  add_fact("HvdLocalSize", {}, {"local_size: int32"}, scalar, local_size);
  add_fact("HvdLocalRank", {}, {"local_rank: int32"}, scalar, local_rank);
  add_fact("HvdProcessSetIncluded", {kSet}, {"included: int32"}, scalar, included);
  add_fact("HvdTicket", {}, {kTicket}, vector, ticket);
  add_fact("HvdStep", {}, {}, no_output, step);
  add_fact("HvdSamples", {}, {}, no_output, samples, {"samples: int64"});
}

}  // namespace

std::string register_all() {
  trouble() = find_tensorflow();
  if (trouble().empty()) add_all();
  return trouble();
}

}  // namespace hvd::tf
