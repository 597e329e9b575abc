// A tensor as Python gives it: (input pointer, output pointer, shape, dtype number).
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "collective/plan.h"
#include "engine/request.h"

namespace hvd::python {

using Shape = std::vector<std::int64_t>;
using PyTensor = std::tuple<std::uintptr_t, std::uintptr_t, Shape, int>;

void add_tensor(const PyTensor& tensor, Request& request, std::vector<Operand>& operands);

}  // namespace hvd::python
