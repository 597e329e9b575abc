#include "python/fast_handles.h"

#include <chrono>
#include <tuple>
#include <utility>

#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// Arguments: live, handle, entry (the entry of the table `live`). Returns the output and removes
// the entry.
PyObject* synchronize(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  return raising([&]() -> PyObject* {
    if (count != 3 || !PyDict_CheckExact(args[0]) || !PyTuple_CheckExact(args[2])) {
      throw py::type_error("fast_synchronize(live, handle, entry)");
    }
    const auto entry = py::reinterpret_borrow<py::tuple>(args[2]);
    auto& engine = entry[0].cast<Engine&>();
    const std::int64_t handle = PyLong_AsLongLong(args[1]);
    const auto forget = [&] {
      if (PyDict_DelItem(args[0], args[1]) != 0)
        PyErr_Clear();  // another thread has waited for it, too
    };
    try {
      wait_until_done(engine, value_or_raise(engine.find(handle)));
    } catch (...) {
      if (!is_known(engine, handle)) forget();
      throw;
    }
    forget();
    return py::object(entry[2]).release().ptr();
  });
}

PyMethodDef synchronize_method = {
    "fast_synchronize", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&synchronize)),
    METH_FASTCALL, "(live, handle, entry) -> the output"};

// Returns the object that a weak reference names; null if it no longer exists.
py::object referent(const py::object& reference) {
#if PY_VERSION_HEX >= 0x030D0000  // which deprecates PyWeakref_GetObject
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(reference.ptr(), &object) < 0) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
#else
  PyObject* const object = PyWeakref_GetObject(reference.ptr());
  return py::reinterpret_borrow<py::object>(object == Py_None ? nullptr : object);
#endif
}

}  // namespace

FastHandles::FastHandles(py::dict live, py::object owner)
    : live_(std::move(live)), owner_(std::move(owner)) {}

py::object FastHandles::owner_of(const Engine& engine) {
  if (engine_ == &engine) {
    if (py::object known = referent(engine_ref_)) return known;
  }
  py::object found = owner_();
  if (found.cast<const Engine*>() != &engine) return {};
  engine_ref_ = py::reinterpret_steal<py::object>(PyWeakref_NewRef(found.ptr(), nullptr));
  if (!engine_ref_) throw py::error_already_set();
  engine_ = &engine;
  return found;
}

void FastHandles::hold(const py::object& owner, Engine& engine, const TaskPtr& task,
                       PyObject* tensor, PyObject* out) {
  if (owner) {
    const auto entry = py::reinterpret_steal<py::object>(PyTuple_Pack(3, owner.ptr(), tensor, out));
    const auto number = py::reinterpret_steal<py::object>(PyLong_FromLongLong(task->handle));
    if (entry && number && PyDict_SetItem(live_.ptr(), number.ptr(), entry.ptr()) == 0) return;
    PyErr_Clear();
  }
  const py::gil_scoped_release unlocked;
  std::ignore = engine.wait(task->handle, std::chrono::hours(1));
}

void begin_now(Engine& engine, const TaskPtr& task) {
  if (!task->held) return;
  if (engine.is_quick(*task)) return engine.begin(task);
  const py::gil_scoped_release unlocked;
  engine.begin(task);
}

bool help(Engine& engine, const TaskPtr& task) {
  if (task->done() || (engine.is_quick(*task) && engine.help(task, {}))) return true;
  const py::gil_scoped_release unlocked;
  return engine.help(task, kSignalCheck);
}

void wait_until_done(Engine& engine, const TaskPtr& task, const Deadline& deadline) {
  while (!help(engine, task)) {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!deadline.expired()) continue;
    raise(Status::make(Code::kTimeout, task->request.name + " is not done in time", "wait"));
  }
  if (const Status status = engine.end(task); !status) raise(status);
}

bool is_known(Engine& engine, std::int64_t handle) {
  return static_cast<bool>(engine.poll(handle, false));
}

void define_fast_handles(py::module_& module) {
  module.attr("fast_synchronize") =
      py::reinterpret_steal<py::object>(PyCFunction_NewEx(&synchronize_method, nullptr, nullptr));
}

}  // namespace hvd::python
