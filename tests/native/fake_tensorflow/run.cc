// A test's side: tensors, nodes and their runs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fake_tensorflow/objects.h"

namespace fake_tensorflow {
namespace {

std::size_t elements(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

template <typename Element>
Tensor made_of(int type, const std::vector<Element>& values, std::vector<std::int64_t> shape) {
  Tensor tensor{type, std::move(shape), std::make_shared<Memory>(values.size() * sizeof(Element))};
  std::copy(values.begin(), values.end(), tensor.as<Element>());
  return tensor;
}

}  // namespace

Tensor floats(const std::vector<float>& values, std::vector<std::int64_t> shape) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
  return made_of(kFloat, values, std::move(shape));
}

Tensor int32s(const std::vector<std::int32_t>& values) {
  return made_of(kInt32, values, {static_cast<std::int64_t>(values.size())});
}

Tensor bytes(const std::string& text) {
  return made_of(kUint8, std::vector<char>(text.begin(), text.end()),
                 {static_cast<std::int64_t>(text.size())});
}

Tensor of_type(int type, std::vector<std::int64_t> shape) {
  const std::size_t size = 16 * elements(shape);
  return {type, std::move(shape), std::make_shared<Memory>(size)};
}

std::vector<float> values(const Tensor& tensor) {
  const auto* const begin = tensor.as<float>();
  return {begin, begin + elements(tensor.shape)};
}

Node::Node(const std::string& op, const std::string& name,
           const std::map<std::string, std::int64_t>& attributes)
    : op_(op) {
  TF_OpKernelConstruction construction{name, attributes};
  kernel_ = kernel_of(op).create(&construction);
}

Node::~Node() { kernel_of(op_).drop(kernel_); }

struct Run::Inside {
  TF_OpKernelContext context;
};

Run::Run(std::vector<Tensor> inputs, std::int64_t step, std::int64_t turn)
    : inside_(std::make_unique<Inside>()) {
  inside_->context.inputs = std::move(inputs);
  inside_->context.outputs.resize(inside_->context.inputs.size() + 1);
  inside_->context.step = step;
  inside_->context.turn = turn;
}

Run::~Run() = default;

void Run::begin(const Node& node) {
  TF_OpKernelContext* const context = &inside_->context;
  const TF_KernelBuilder& kernel = kernel_of(node.op());
  if (kernel.compute != nullptr) {
    kernel.compute(node.kernel(), context);
    ++context->ended;
    return;
  }
  // It is gone when compute returns, as TensorFlow's is.
  const auto done = std::make_unique<std::function<void()>>([context] { ++context->ended; });
  kernel.compute_async(node.kernel(), context,
                       reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(done.get()));
}

int Run::ended() const { return inside_->context.ended; }
int Run::code() const { return inside_->context.failure.code; }
std::string Run::text() const { return inside_->context.failure.text; }
const Tensor& Run::output(std::size_t index) const { return inside_->context.outputs.at(index); }
void Run::forbid_forwarding() { inside_->context.lends = false; }

}  // namespace fake_tensorflow
