// TensorFlow's functions, under TensorFlow's names.
#include <memory>
#include <stdexcept>
#include <utility>

#include "fake_tensorflow/objects.h"

namespace fake_tensorflow {
namespace {

struct World {
  std::map<std::string, Op> ops;
  std::map<std::string, std::map<std::string, std::unique_ptr<TF_KernelBuilder>>> kernels;
  std::map<std::string, std::map<std::string, std::set<std::string>>> on_host;
  bool deaf = false;
};
World& world() {
  static World& all = *new World;  // NOLINT(cppcoreguidelines-owning-memory): never destroyed
  return all;
}

void fail(TF_Status* status, int code, std::string text) { *status = {code, std::move(text)}; }

TF_Tensor* shared(const Tensor& tensor) { return new TF_Tensor{tensor}; }

std::vector<std::int64_t> shape_of(const std::int64_t* extents, int count) {
  return {extents, extents + count};
}

constexpr std::int64_t kNothing = -2;
bool known(const std::vector<std::int64_t>& shape) {
  return shape != std::vector<std::int64_t>{kNothing};
}

}  // namespace

const std::map<std::string, Op>& ops() { return world().ops; }
const std::map<std::string, std::set<std::string>>& kernels(const std::string& op) {
  return world().on_host.at(op);
}
const TF_KernelBuilder& kernel_of(const std::string& op) {
  return *world().kernels.at(op).at("CPU");
}
void be_deaf(bool deaf) { world().deaf = deaf; }

}  // namespace fake_tensorflow

extern "C" {

using fake_tensorflow::Memory;
using fake_tensorflow::Tensor;
using fake_tensorflow::world;

TF_Status* TF_NewStatus() { return new TF_Status; }
void TF_DeleteStatus(TF_Status* status) { delete status; }
void TF_SetStatus(TF_Status* status, int code, const char* text) {
  fake_tensorflow::fail(status, code, text);
}
int TF_GetCode(const TF_Status* status) { return status->code; }
const char* TF_Message(const TF_Status* status) { return status->text.c_str(); }

TF_Tensor* TF_NewTensor(int type, const std::int64_t* extents, int count, void* data,
                        std::size_t bytes, hvd::tf::Deallocator free, void* argument) {
  auto memory = std::make_shared<Memory>(data, [=] { free(data, bytes, argument); });
  return new TF_Tensor{{type, fake_tensorflow::shape_of(extents, count), std::move(memory)}};
}
void TF_DeleteTensor(TF_Tensor* tensor) { delete tensor; }
void* TF_TensorData(const TF_Tensor* tensor) { return tensor->tensor.memory->data(); }
int TF_NumDims(const TF_Tensor* tensor) { return static_cast<int>(tensor->tensor.shape.size()); }
std::int64_t TF_Dim(const TF_Tensor* tensor, int index) {
  return tensor->tensor.shape.at(static_cast<std::size_t>(index));
}
int TF_TensorType(const TF_Tensor* tensor) { return tensor->tensor.type; }

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name) {
  return new TF_OpDefinitionBuilder{name, {}};
}
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* text) {
  builder->op.attributes.emplace_back(text);
}
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder, const char* text) {
  builder->op.inputs.emplace_back(text);
}
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder, const char* text) {
  builder->op.outputs.emplace_back(text);
}
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* builder, bool stateful) {
  builder->op.stateful = stateful;
}
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder* builder,
                                                     hvd::tf::ShapeFunction function) {
  builder->op.shapes = [function, name = builder->name](const auto& inputs, auto* outputs) {
    TF_ShapeInferenceContext context{inputs, {}};
    context.outputs.resize(world().ops.at(name).outputs.size() + inputs.size());
    TF_Status status;
    function(&context, &status);
    *outputs = context.outputs;
    return status.text;
  };
}
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status) {
  const std::unique_ptr<TF_OpDefinitionBuilder> taken(builder);
  if (!world().ops.emplace(taken->name, taken->op).second)
    fake_tensorflow::fail(status, 6, "registered already");
}

std::int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext* context) {
  return static_cast<std::int64_t>(context->inputs.size());
}
TF_ShapeHandle* TF_NewShapeHandle() { return new TF_ShapeHandle; }
void TF_DeleteShapeHandle(TF_ShapeHandle* handle) { delete handle; }
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext* context, int index,
                                      TF_ShapeHandle* handle, TF_Status* /*status*/) {
  handle->shape = context->inputs.at(static_cast<std::size_t>(index));
}
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext* context, int index,
                                       TF_ShapeHandle* handle, TF_Status* /*status*/) {
  context->outputs.at(static_cast<std::size_t>(index)) = handle->shape;
}
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext* /*context*/) {
  return new TF_ShapeHandle;
}
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext* /*context*/,
                                                       std::size_t size) {
  return new TF_ShapeHandle{{static_cast<std::int64_t>(size)}};
}
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext* /*context*/,
                                      TF_ShapeHandle* handle) {
  return fake_tensorflow::known(handle->shape) ? 1 : 0;
}
std::int64_t TF_ShapeInferenceContextRank(TF_ShapeInferenceContext* /*context*/,
                                          TF_ShapeHandle* handle) {
  return static_cast<std::int64_t>(handle->shape.size());
}
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext* /*context*/, TF_ShapeHandle* handle,
                                      std::int64_t begin, std::int64_t end, TF_ShapeHandle* result,
                                      TF_Status* /*status*/) {
  result->shape.assign(handle->shape.begin() + begin, handle->shape.begin() + end);
}
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext* /*context*/,
                                               TF_ShapeHandle* first, TF_ShapeHandle* second,
                                               TF_ShapeHandle* result, TF_Status* /*status*/) {
  result->shape = first->shape;
  result->shape.insert(result->shape.end(), second->shape.begin(), second->shape.end());
}

TF_KernelBuilder* TF_NewKernelBuilder(const char* /*op*/, const char* device,
                                      hvd::tf::Create create, hvd::tf::Compute compute,
                                      hvd::tf::Delete drop) {
  return new TF_KernelBuilder{device, {}, create, compute, nullptr, drop};
}
TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* /*op*/, const char* device,
                                           hvd::tf::Create create, hvd::tf::ComputeAsync compute,
                                           hvd::tf::Delete drop) {
  return new TF_KernelBuilder{device, {}, create, nullptr, compute, drop};
}
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback* done) {
  if (!world().deaf) (*reinterpret_cast<std::function<void()>*>(done))();
}
void TF_KernelBuilder_HostMemory(TF_KernelBuilder* builder, const char* argument) {
  builder->on_host.emplace(argument);
}
void TF_RegisterKernelBuilder(const char* op, TF_KernelBuilder* builder, TF_Status* status) {
  std::unique_ptr<TF_KernelBuilder> taken(builder);
  if (world().ops.count(op) == 0) return fake_tensorflow::fail(status, 5, "no such op");
  world().on_host[op][taken->device] = taken->on_host;
  world().kernels[op][taken->device] = std::move(taken);
}

int TF_NumInputs(TF_OpKernelContext* context) { return static_cast<int>(context->inputs.size()); }
void TF_GetInput(TF_OpKernelContext* context, int index, TF_Tensor** tensor, TF_Status* status) {
  const auto place = static_cast<std::size_t>(index);
  if (place >= context->inputs.size()) return fake_tensorflow::fail(status, 11, "no such input");
  *tensor = fake_tensorflow::shared(context->inputs[place]);
}
void TF_SetOutput(TF_OpKernelContext* context, int index, const TF_Tensor* tensor,
                  TF_Status* /*status*/) {
  context->outputs.at(static_cast<std::size_t>(index)) = tensor->tensor;
}
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext* context, int index, int type,
                             const std::int64_t* extents, int count, std::size_t bytes,
                             TF_Status* status) {
  if (bytes > 1U << 30U) {
    fake_tensorflow::fail(status, 8, "out of memory");
    return nullptr;
  }
  Tensor& output = context->outputs.at(static_cast<std::size_t>(index));
  output = {type, fake_tensorflow::shape_of(extents, count), std::make_shared<Memory>(bytes)};
  return fake_tensorflow::shared(output);
}
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext* context, const int* inputs,
                                           int count, int index, const std::int64_t* extents,
                                           int dimensions, int* forwarded, TF_Status* status) {
  if (count != 1) throw std::logic_error("one input for each output");
  Tensor& input = context->inputs.at(static_cast<std::size_t>(*inputs));
  const std::size_t bytes = sizeof(double) * 2;
  if (!context->lends || input.memory.use_count() > 1) {
    *forwarded = -1;
    std::size_t elements = 1;
    for (const std::int64_t extent : input.shape) elements *= static_cast<std::size_t>(extent);
    return TF_AllocateOutput(context, index, input.type, extents, dimensions, elements * bytes,
                             status);
  }
  *forwarded = *inputs;
  context->outputs.at(static_cast<std::size_t>(index)) = std::move(input);
  return fake_tensorflow::shared(context->outputs.at(static_cast<std::size_t>(index)));
}
std::int64_t TF_GetIterId(TF_OpKernelContext* context) { return context->turn; }
std::int64_t TF_StepId(TF_OpKernelContext* context) { return context->step; }
void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status) {
  context->failure = *status;
}

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* /*construction*/, TF_Status* status) {
  throw std::logic_error("a kernel could not be made: " + status->text);
}
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction* construction, const char* name,
                                          std::int64_t* value, TF_Status* status) {
  const auto found = construction->attributes.find(name);
  if (found == construction->attributes.end())
    return fake_tensorflow::fail(status, 5, "no such attribute");
  *value = found->second;
}
void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction* construction, const char* name,
                                         unsigned char* value, TF_Status* status) {
  std::int64_t number = 0;
  TF_OpKernelConstruction_GetAttrInt64(construction, name, &number, status);
  *value = static_cast<unsigned char>(number != 0);
}
TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction* construction) {
  return {construction->name.data(), construction->name.size()};
}
}
