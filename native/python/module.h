// The parts of the extension module, and its exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "base/status.h"

namespace hvd {
class Engine;
}

namespace hvd::python {

void define_outcome(pybind11::module_& module);
void define_bootstraps(pybind11::module_& module);
void define_engine(pybind11::module_& module);
void define_fast_calls(pybind11::module_& module);
void define_dlpack(pybind11::module_& module);

// In outcome_py.cc, as a method of Engine.
pybind11::object shared_memory(const Engine& self, std::int64_t region);

// The only place where a Status becomes an exception: one class of hvd_kernel.errors per code.
[[noreturn]] void raise(const Status& status);

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.status());
  return result.take();
}

}  // namespace hvd::python
