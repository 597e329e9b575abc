// A frontend's allreduce in one function, for the usual case: contiguous tensors on the host, one
// or a group, all ranks, nothing to convert; blocking, or begun and waited for later
// (fast_handles.h). Arguments are read directly from Python's stack, and the request for a name,
// types and shapes is cached (fast_request.h). All other cases are declined and take the ordinary
// path, which reports errors.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "c_api/current.h"
#include "python/fast_handles.h"
#include "python/fast_request.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr const char* kFrontend = "hvd_kernel frontend";

// Never destroyed: functions refer to it.
struct Frontend {
  TensorKind tensors;
  py::object all_ranks;  // the process set of all ranks
  FastHandles handles;
  FastRequests requests{};
};

std::size_t count_of(const View& view) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < view.dims; ++i) count *= static_cast<std::size_t>(view.shape[i]);
  return count;
}

// The arguments of a call; for a group, tensors and out are tuples.
struct Arguments {
  Frontend& frontend;
  Engine& engine;
  PyObject* name;
  Signature how;
  const Views& in;
  py::object tensors, out;
  std::vector<Operand> operands;
  double timeout_s = -1;  // of calls that wait; negative: none

  // Look it up last: another call may evict it as soon as Python runs.
  KeptRequest* kept() const { return frontend.requests.find(name, how, in); }
  const Request* request() const {
    const KeptRequest* const found = kept();
    return found == nullptr ? nullptr : &found->request;
  }
};

using Current = std::unique_ptr<hvd_engine, void (*)(hvd_engine*)>;

Current current() {
  return {c_api::current(), [](hvd_engine* engine) {
            if (engine != nullptr) c_api::release(engine);
          }};
}

PyObject* const* items_of(py::object& one, bool grouped) {
  return grouped ? PySequence_Fast_ITEMS(one.ptr()) : &one.ptr();
}

// nullptr, without an error: not a usual group.
py::object group_of(PyObject* tensors) {
  const bool usual = PyList_CheckExact(tensors) || PyTuple_CheckExact(tensors);
  if (!usual || PySequence_Fast_GET_SIZE(tensors) == 0) return {};
  return py::reinterpret_steal<py::object>(PySequence_Tuple(tensors));
}

py::object made_by(PyObject* make, PyObject* tensor) {
  auto made = py::reinterpret_steal<py::object>(PyObject_CallOneArg(make, tensor));
  if (!made) throw py::error_already_set();
  return made;
}

py::object made_by(PyObject* make, py::object& tensors, bool grouped) {
  if (!grouped) return made_by(make, tensors.ptr());
  py::tuple all(py::len(tensors));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = made_by(make, items_of(tensors, true)[i]);
  return std::move(all);
}

std::vector<Operand> operands_of(const Views& in, const Views& out) {
  std::vector<Operand> operands;
  operands.reserve(in.size());
  const View* to = out.begin();
  for (const View& from : in) operands.push_back({from.data, (to++)->data, count_of(from)});
  return operands;
}

// The result of `then` in the usual case; nullptr, without an error: declined, nothing was done.
template <typename Then>
PyObject* if_usual(PyObject* self, PyObject* const* args, Py_ssize_t count, bool grouped,
                   const Then& then) {
  auto& frontend = *static_cast<Frontend*>(PyCapsule_GetPointer(self, kFrontend));
  if ((count != 8 && count != 9) || args[7] != frontend.all_ranks.ptr()) return nullptr;
  PyObject* const name = args[3];
  Signature how;
  how.grouped = grouped;
  how.whole_name = count == 9;
  if (name != Py_None && !PyUnicode_CheckExact(name)) return nullptr;
  if (!read_how(args[2], args[4], args[5], args[6], how)) return nullptr;
  const Current now = current();
  if (now == nullptr) return nullptr;
  auto tensors = grouped ? group_of(args[0]) : py::reinterpret_borrow<py::object>(args[0]);
  if (!tensors) return nullptr;
  Views in(grouped ? py::len(tensors) : 1);
  if (!view_tensors(frontend.tensors, items_of(tensors, grouped), in)) return nullptr;
  if (!std::all_of(in.begin(), in.end(), [&](const View& v) { return is_usual(v.dtype, how.op); }))
    return nullptr;
  const bool in_place = args[1] == args[0];
  auto out = in_place ? tensors : made_by(args[1], tensors, grouped);
  Views results(in_place ? 0 : in.size());
  if (!view_tensors(frontend.tensors, items_of(out, grouped), results)) return nullptr;
  auto operands = operands_of(in, in_place ? in : results);
  const double timeout_s = count == 9 ? PyFloat_AsDouble(args[8]) : -1;
  if (timeout_s == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return then(Arguments{frontend, *now->engine, name, how, in, std::move(tensors), std::move(out),
                        std::move(operands), timeout_s});
}

// A single rank does not wait, so it keeps the GIL.
template <typename Step>
auto without_gil(const Engine& engine, const Step& step) {
  if (engine.topology().size == 1) return step();
  const py::gil_scoped_release unlocked;
  return step();
}

// An interrupt or the timeout ends the wait, not the operation: the handle can be waited for again.
PyObject* run(Arguments arguments) {
  Engine& engine = arguments.engine;
  KeptRequest* const kept = arguments.kept();
  if (kept == nullptr) return nullptr;
  if (const auto known = kept->persistent(engine);
      known && without_gil(engine, [&] { return engine.run(*known, arguments.operands); })) {
    return Py_NewRef(arguments.out.ptr());
  }
  const Request* const request = arguments.request();
  if (request == nullptr) return nullptr;
  const TaskPtr task =
      value_or_raise(engine.enqueue_task(*request, std::move(arguments.operands), Next::kWaits));
  const double limit = arguments.timeout_s;
  try {
    wait_until_done(engine, task, limit < 0 ? Deadline::never() : Deadline::after_seconds(limit));
  } catch (py::error_already_set&) {
    FastHandles& handles = arguments.frontend.handles;
    if (is_known(engine, task->handle)) {
      handles.hold(handles.owner_of(engine), engine, task, arguments.tensors.ptr(),
                   arguments.out.ptr());
    }
    throw;
  }
  return Py_NewRef(arguments.out.ptr());
}

PyObject* begin(Arguments arguments) {
  Engine& engine = arguments.engine;
  FastHandles& handles = arguments.frontend.handles;
  const py::object owner = handles.owner_of(engine);
  KeptRequest* const kept = owner ? arguments.kept() : nullptr;
  if (kept == nullptr) return nullptr;
  TaskPtr task;
  if (const auto known = kept->persistent(engine)) {
    task = value_or_raise(
        without_gil(engine, [&] { return engine.begin(*known, arguments.operands); }));
  }
  const bool done = task != nullptr;
  if (!done) {
    const Request* const request = arguments.request();
    if (request == nullptr) return nullptr;
    task =
        value_or_raise(engine.enqueue_task(*request, std::move(arguments.operands), Next::kBegins));
  }
  handles.hold(owner, engine, task, arguments.tensors.ptr(), arguments.out.ptr());
  if (!done) begin_now(engine, task);
  return PyLong_FromLongLong(task->handle);
}

// None: declined.
template <bool kGrouped, PyObject* (*kThen)(Arguments arguments)>
PyObject* allreduce(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return raising([&] {
    PyObject* const result = if_usual(self, args, count, kGrouped, kThen);
    return result != nullptr || PyErr_Occurred() != nullptr ? result : Py_NewRef(Py_None);
  });
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

std::array methods{
    PyMethodDef{
        "allreduce_at_once", as_method(&allreduce<false, &run>), METH_FASTCALL,
        "(tensor, out, average, name, op, prescale, postscale, process_set[, timeout_s]) -> "
        "the output, which is the tensor where out is, else made by out(tensor); None: "
        "declined, nothing has happened. With a timeout the name is used as it is."},
    PyMethodDef{"allreduce_begun", as_method(&allreduce<false, &begin>), METH_FASTCALL,
                "the same -> a handle; None: declined, nothing has happened"},
    PyMethodDef{"grouped_allreduce_at_once", as_method(&allreduce<true, &run>), METH_FASTCALL,
                "of a list or tuple of tensors -> a tuple"},
    PyMethodDef{"grouped_allreduce_begun", as_method(&allreduce<true, &begin>), METH_FASTCALL,
                "the same -> a handle"}};

py::object fast_allreduce(py::object type, py::object subtype, const py::object& exchange,
                          py::object all_ranks, py::dict live, py::object owner) {
  auto frontend =
      std::unique_ptr<Frontend>(new Frontend{{std::move(type), std::move(subtype), exchange},
                                             std::move(all_ranks),
                                             {std::move(live), std::move(owner)}});
  if (!frontend->tensors.known()) return py::none();
  const py::capsule self(frontend.release(), kFrontend);
  py::tuple functions(methods.size());
  for (std::size_t i = 0; i < methods.size(); ++i) {
    functions[i] =
        py::reinterpret_steal<py::object>(PyCFunction_NewEx(&methods[i], self.ptr(), nullptr));
  }
  return std::move(functions);
}

}  // namespace

void define_fast_calls(py::module_& module) {
  module.def("fast_allreduce", &fast_allreduce);
  define_fast_handles(module);
}

}  // namespace hvd::python
