// Tensors from Python: (pointer, shape, dtype number), or (input pointer, output pointer, shape,
// dtype number); on a device two more values: the device's number and the stream (a pointer).
// Parsed by hand: a conversion to std::tuple and std::vector costs more than enqueueing a small
// operation.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "collective/backend/plan.h"
#include "engine/message/request.h"

namespace hvd::python {

// The memory of a request's tensors.
struct Memory {
  std::vector<Operand> operands;
  void* stream = nullptr;  // one for all tensors on a device
};

// sequence: of tensors; outputs: with output pointers.
void add_tensors(pybind11::handle sequence, bool outputs, Request& request, Memory& memory);
void add_tensor(pybind11::handle tensor, bool outputs, Request& request, Memory& memory);
std::vector<std::int64_t> whole_numbers(pybind11::handle sequence);

}  // namespace hvd::python
