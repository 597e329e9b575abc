// The parts of the extension module, one per file.
#pragma once

#include <pybind11/pybind11.h>

namespace hvd::python {

void define_buffer(pybind11::module_& module);
void define_bootstraps(pybind11::module_& module);
void define_engine(pybind11::module_& module);

}  // namespace hvd::python
