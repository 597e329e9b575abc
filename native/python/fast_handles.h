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

  // Python's engine; null: it is another one than the one that is current here. Asked for before
  // anything is enqueued.
  pybind11::object owner_of(const Engine& engine);
  // Keeps the tensors until somebody has waited. Where that is impossible (no memory, or no owner),
  // waits itself.
  void hold(const pybind11::object& owner, Engine& engine, const TaskPtr& task, PyObject* tensor,
            PyObject* out);

 private:
  pybind11::dict live_;
  pybind11::object owner_;
  pybind11::object engine_ref_;     // a weak reference to Python's engine
  const Engine* engine_ = nullptr;  // what that is, as long as it lives
};

// After Next::kBegins, as Engine::begin().
void begin_here(Engine& engine, const TaskPtr& task);
// Carries it out or waits, with other threads of Python at work meanwhile where it is worth it.
// True: it is done. False: so long that Python's signals should be looked at.
bool help(Engine& engine, const TaskPtr& task);
// Raises what it has ended with. An interrupt ends the wait, not the operation: the handle is still
// known then, and with whatever else is raised it no longer is.
void wait_until_done(Engine& engine, const TaskPtr& task);
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
