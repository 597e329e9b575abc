// Tensors of a call: taken from TensorFlow, allocated there, and given to it.
#pragma once

#include <cstdint>
#include <vector>

#include "c_api/hvd_core.h"
#include "tf/call.h"

namespace hvd::tf {

constexpr int kInt32 = 3;  // TensorFlow's number of the type

Status input(TF_OpKernelContext* context, int index, Tensor* tensor);
// The next tensor that the call moves.
Status read(Call& call, int index);
// So too, with an output of its shape: in the same memory where nobody else reads it.
Status read_and_forward(Call& call, int index);
// The last input: the name that the caller of an eager operation gives.
Status read_ticket(Call& call, int index);

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type);
Status allocate(Call& call, int index, const std::vector<std::int64_t>& shape, int tensorflow_type,
                std::size_t size, void** data);
Status put_number(Call& call, int index, std::int32_t value);
// Memory of the core becomes the outputs as it is, which have the types of the inputs.
Status give_all(Call& call, const hvd_outcome& outcome);

}  // namespace hvd::tf
