#include "tf/memory.h"

#include <cstring>
#include <string>
#include <utility>

namespace hvd::tf {
namespace {

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tf()->NumDims(tensor.get())));
  for (std::size_t i = 0; i < shape.size(); ++i)
    shape[i] = tf()->Dim(tensor.get(), static_cast<int>(i));
  return shape;
}

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

// Type and shape of the next input.
Status measure(Call& call, const Tensor& tensor) {
  DLDataType type{};
  const int number_of_type = tf()->TensorType(tensor.get());
  if (!dlpack_type(number_of_type, &type)) {
    return {Code::kInvalidArgument, call.name + ": tensors of TensorFlow's type " +
                                        std::to_string(number_of_type) +
                                        " cannot be sent to other ranks"};
  }
  call.types.push_back(type);
  call.shapes.push_back(shape_of(tensor));
  return {};
}

void release_buffer(void* /*data*/, std::size_t /*bytes*/, void* buffer) {
  core()->drop(static_cast<hvd_buffer*>(buffer));
  count(&counters.returned);
}

// Wrap the core's memory in a tensor of TensorFlow.
Status set_output(Call& call, int index, const hvd_output& output, int tensorflow_type) {
  const DLTensor& result = output.tensor;
  const std::vector<std::int64_t> shape(result.shape, result.shape + result.ndim);
  const std::size_t size = bytes(shape, result.dtype);
  void* data = nullptr;
  if (size == 0) return allocate(call, index, shape, tensorflow_type, 0, &data);
  core()->keep(output.owner);
  data = static_cast<char*>(result.data) + result.byte_offset;
  Status status;
  const Tensor tensor(tf()->NewTensor(tensorflow_type, shape.data(), static_cast<int>(shape.size()),
                                      data, size, release_buffer, output.owner));
  if (tf()->TensorData(tensor.get()) == data) count(&counters.given);
  tf()->SetOutput(call.context, index, tensor.get(), status.get());
  return status;
}

}  // namespace

Status input(TF_OpKernelContext* context, int index, Tensor* tensor) {
  Status status;
  TF_Tensor* found = nullptr;
  tf()->GetInput(context, index, &found, status.get());
  tensor->reset(found);
  return status;
}

Status read(Call& call, int index) {
  Tensor tensor;
  if (Status status = input(call.context, index, &tensor); !status) return status;
  if (Status status = measure(call, tensor); !status) return status;
  call.data.push_back(tf()->TensorData(tensor.get()));
  call.held.push_back(std::move(tensor));
  return {};
}

// TensorFlow forwards an input's memory to an output only while we hold no reference to it.
Status read_and_forward(Call& call, int index) {
  Tensor tensor;
  if (Status status = input(call.context, index, &tensor); !status) return status;
  if (Status status = measure(call, tensor); !status) return status;
  tensor.reset();
  const std::vector<std::int64_t>& shape = call.shapes.back();
  int forwarded = -1;
  Status status;
  Tensor output(tf()->ForwardInputOrAllocateOutput(call.context, &index, 1, index, shape.data(),
                                                   static_cast<int>(shape.size()), &forwarded,
                                                   status.get()));
  if (!status) return status;
  call.output_data.push_back(tf()->TensorData(output.get()));
  call.output_shapes.push_back(shape);
  call.held.push_back(std::move(output));
  if (forwarded >= 0) {
    count(&counters.forwarded);
    call.data.push_back(call.output_data.back());
    return status;
  }
  status = input(call.context, index, &tensor);
  if (!status) return status;
  call.data.push_back(tf()->TensorData(tensor.get()));
  call.held.push_back(std::move(tensor));
  return status;
}

Status read_ticket(Call& call, int index) {
  Tensor ticket;
  Status status = input(call.context, index, &ticket);
  if (!status) return status;
  const auto length =
      static_cast<std::size_t>(tf()->NumDims(ticket.get()) == 1 ? tf()->Dim(ticket.get(), 0) : 0);
  if (length > 0)
    call.name.assign(static_cast<const char*>(tf()->TensorData(ticket.get())), length);
  return status;
}

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type) {
  return static_cast<std::size_t>(elements(shape)) * bytes_of(type);
}

Status allocate(Call& call, int index, const std::vector<std::int64_t>& shape, int tensorflow_type,
                std::size_t size, void** data) {
  Status status;
  Tensor tensor(tf()->AllocateOutput(call.context, index, tensorflow_type, shape.data(),
                                     static_cast<int>(shape.size()), size, status.get()));
  if (!status) return status;
  *data = tf()->TensorData(tensor.get());
  call.held.push_back(std::move(tensor));
  return status;
}

Status put_number(Call& call, int index, std::int32_t value) {
  void* data = nullptr;
  Status status = allocate(call, index, {}, kInt32, sizeof(value), &data);
  if (status) std::memcpy(data, &value, sizeof(value));
  return status;
}

Status set_outputs(Call& call, const hvd_outcome& outcome) {
  for (std::size_t i = 0; i < outcome.outputs_count; ++i) {
    const int type = tf()->TensorType(call.held[i].get());
    if (Status status = set_output(call, static_cast<int>(i), outcome.outputs[i], type); !status)
      return status;
  }
  return {};
}

}  // namespace hvd::tf
