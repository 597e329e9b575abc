// Handles of operations that fast_call.cc has begun, in Python's own table of handles
// (hvd_kernel/core/handles.py): there such a handle has (engine, tensor, output) instead of
// (engine, finish), and the waiting caller gets the output.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <exception>

#include "base/deadline.h"
#include "engine/engine.h"

namespace hvd::python {

// Interval between two checks of Python's signals (Ctrl-C) during a wait.
inline constexpr std::chrono::milliseconds kSignalCheck(20);

class FastHandles {
 public:
  // live: the table, a dict. owner: Python's function that returns the engine of the table's
  // handles, after dropping handles of another engine.
  FastHandles(pybind11::dict live, pybind11::object owner);

  // Python's engine; nullptr: it is not the current one here. Call it before anything is enqueued.
  pybind11::object owner_of(const Engine& engine);
  // Keep the tensors alive until a caller has waited. If that is impossible (no memory, or no
  // owner), wait here.
  void hold(const pybind11::object& owner, Engine& engine, const TaskPtr& task, PyObject* tensor,
            PyObject* out);

 private:
  pybind11::dict live_;
  pybind11::object owner_;
  pybind11::object engine_ref_;     // a weak reference to Python's engine
  const Engine* engine_ = nullptr;  // the engine of engine_ref_, while it lives
};

// Engine::begin(), after Next::kBegins.
void begin_now(Engine& engine, const TaskPtr& task);
// Execute the task or wait, without the GIL if that is worth it. True: it is done. False: it is
// time to check Python's signals.
bool help(Engine& engine, const TaskPtr& task);
// Wait and raise the task's error. An interrupt or the deadline, which is checked ten times a
// second, ends the wait, not the operation: the handle stays valid then, but not after other
// exceptions.
void wait_until_done(Engine& engine, const TaskPtr& task,
                     const Deadline& deadline = Deadline::never());
bool is_known(Engine& engine, std::int64_t handle);

// A METH_FASTCALL function of Python: exceptions of its body become Python errors.
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
