// The parts of the extension module, one per file.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace hvd {
class Engine;
}

namespace hvd::python {

void define_outcome(pybind11::module_& module);
void define_bootstraps(pybind11::module_& module);
void define_engine(pybind11::module_& module);
void define_fast_calls(pybind11::module_& module);
void define_dlpack(pybind11::module_& module);

// outcome_py.cc, as a method of Engine.
pybind11::object shared_memory(const Engine& self, std::int64_t region);

}  // namespace hvd::python
