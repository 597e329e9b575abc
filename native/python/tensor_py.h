// A tensor as Python gives it: (pointer, shape, dtype number), or (input pointer, output pointer,
// shape, dtype number); of one on a device two values more: the device's number, and the stream (a
// pointer). Read by hand: a conversion to std::tuple and std::vector costs more than handing over a
// small operation.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "collective/backend/plan.h"
#include "engine/message/request.h"

namespace hvd::python {

// What a request works on, besides its tensors' shapes.
struct Memory {
  std::vector<Operand> operands;
  void* stream = nullptr;  // of tensors on a device: one for all
};

// `sequence` is one of tensors; outputs: with output pointers.
void add_tensors(pybind11::handle sequence, bool outputs, Request& request, Memory& memory);
void add_tensor(pybind11::handle tensor, bool outputs, Request& request, Memory& memory);
std::vector<std::int64_t> whole_numbers(pybind11::handle sequence);

}  // namespace hvd::python
