// Handles of operations that fast_call.cc has begun, in Python's own table of handles
// (hvd_kernel/core/handles.py): there such a handle has (engine, tensor, output) instead of
// (engine, finish), and whoever waits for it gets the output.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>

#include "engine/engine.h"

namespace hvd::python {

class FastHandles {
 public:
  // live: the table, a dict. owner: Python's function that returns the engine whose handles the
  // table has, after it has forgotten those of another one.
  FastHandles(pybind11::dict live, pybind11::object owner);

  // False: Python knows another engine than the one that is current here. Asked for before anything
  // is enqueued.
  bool belongs_to(const Engine& engine);
  // Keeps the tensors until somebody has waited. Where that is impossible (no memory), waits
  // itself.
  void hold(Engine& engine, std::int64_t handle, PyObject* tensor, PyObject* out);

 private:
  pybind11::object engine_object() const;

  pybind11::dict live_;
  pybind11::object owner_;
  pybind11::object engine_ref_;     // a weak reference to Python's engine
  const Engine* engine_ = nullptr;  // what that is, as long as it lives
};

// With other threads at work meanwhile. An interrupt ends the wait, not the operation: the handle
// is still known then, and with whatever else is raised it no longer is.
void wait_until_done(Engine& engine, std::int64_t handle);
bool is_known(Engine& engine, std::int64_t handle);

// A function of Python as METH_FASTCALL has it: what its body throws becomes Python's error.
template <typename Body>
PyObject* raising(const Body& body) {
  try {
    return body();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

void define_fast_handles(pybind11::module_& module);

}  // namespace hvd::python
