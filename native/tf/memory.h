// Tensors of a call: read from TensorFlow, allocated there, and returned to it.
#pragma once

#include <cstdint>
#include <vector>

#include "c_api/hvd_core.h"
#include "tf/call.h"

namespace hvd::tf {

constexpr int kInt32 = 3;  // TensorFlow's number of the type

Status input(TF_OpKernelContext* context, int index, Tensor* tensor);
// Read the next tensor of the call.
Status read(Call& call, int index);
// The same, with an output of its shape, in the same memory if it has no other reader.
Status read_and_forward(Call& call, int index);
// The last input: the caller's name for an eager operation.
Status read_ticket(Call& call, int index);

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type);
Status allocate(Call& call, int index, const std::vector<std::int64_t>& shape, int tensorflow_type,
                std::size_t size, void** data);
Status put_number(Call& call, int index, std::int32_t value);
// Wrap the core's memory as the outputs, which have the types of the inputs.
Status set_outputs(Call& call, const hvd_outcome& outcome);

}  // namespace hvd::tf
