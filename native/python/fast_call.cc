// A frontend's allreduce in one function, for the usual case: one contiguous tensor on the host,
// all ranks, nothing to convert; blocking, or begun and waited for later (fast_handles.h).
// Arguments are read as they lie on Python's stack, and the request of a name, type and shape is
// kept. Whatever is not quite so is declined, and goes the ordinary way, which has the errors.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/current.h"
#include "c_api/tensor.h"
#include "python/errors_py.h"
#include "python/fast_handles.h"
#include "python/fast_tensor.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr std::size_t kCalls = 1024;  // requests that are kept; a newer takes an older one's place
constexpr const char* kFrontend = "hvd_kernel frontend";

struct Signature {
  int op = 0;
  double prescale = 1.0, postscale = 1.0;
};

struct Call {
  py::object name;
  Signature how;
  Request request;
};

// Never destroyed: functions have it.
struct Frontend {
  TensorKind tensors;
  py::object everybody;  // the process set of all ranks
  FastHandles handles;
  std::array<Call, kCalls> calls{};
};

bool same_shape(const View& view, const std::vector<std::int64_t>& shape) {
  return view.dims == shape.size() && std::equal(shape.begin(), shape.end(), view.shape);
}

bool same_name(PyObject* a, PyObject* b) {
  return a == b || (a != Py_None && b != Py_None && PyUnicode_Compare(a, b) == 0);
}

bool read_how(PyObject* average, PyObject* op, PyObject* before, PyObject* after, Signature& how) {
  if (average != Py_None || !PyFloat_CheckExact(before) || !PyFloat_CheckExact(after)) return false;
  if (op != Py_None && !PyLong_CheckExact(op)) return false;
  const long number = op == Py_None ? 0 : PyLong_AsLong(op);
  if (number < 0 || number >= kReduceOpCount) return declined();
  how = {static_cast<int>(number), PyFloat_AS_DOUBLE(before), PyFloat_AS_DOUBLE(after)};
  return true;
}

// Nothing that the ordinary way would refuse.
bool is_usual(Dtype dtype, int op) {
  constexpr std::array kUsual{Dtype::kUint8,   Dtype::kInt8,    Dtype::kUint16,  Dtype::kInt16,
                              Dtype::kInt32,   Dtype::kInt64,   Dtype::kFloat16, Dtype::kFloat32,
                              Dtype::kFloat64, Dtype::kBfloat16};
  const bool adasum = op == static_cast<int>(ReduceOp::kAdasum);
  return !adasum && std::find(kUsual.begin(), kUsual.end(), dtype) != kUsual.end();
}

std::optional<Request> made(PyObject* name, const Signature& how, const View& view) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = static_cast<ReduceOp>(how.op);
  request.prescale = how.prescale;
  request.postscale = how.postscale;
  if (name != Py_None && PyUnicode_GET_LENGTH(name) > 0) {
    const char* const text = PyUnicode_AsUTF8(name);
    if (text == nullptr) return std::nullopt;
    request.name = std::string("allreduce.") + text;
  }
  TensorMeta meta;
  meta.dtype = view.dtype;
  meta.shape.assign(view.shape, view.shape + view.dims);
  request.tensors.push_back(std::move(meta));
  return request;
}

bool known(const Call& call, PyObject* name, const Signature& how, const View& view) {
  if (!call.name || !same_name(call.name.ptr(), name)) return false;
  const TensorMeta& tensor = call.request.tensors.front();
  return call.how.op == how.op && call.how.prescale == how.prescale &&
         call.how.postscale == how.postscale && tensor.dtype == view.dtype &&
         same_shape(view, tensor.shape);
}

Call& place_of(Frontend& frontend, PyObject* name) {
  const auto hash = static_cast<std::size_t>(name == Py_None ? 0 : PyObject_Hash(name));
  return frontend.calls[hash % kCalls];
}

std::size_t count_of(const View& view) {
  std::size_t count = 1;
  for (std::size_t i = 0; i < view.dims; ++i) count *= static_cast<std::size_t>(view.shape[i]);
  return count;
}

// What is asked for: tensor, out, average, name, op, prescale, postscale, process set. The call is
// another thread's as soon as Python runs.
struct Asked {
  Frontend& frontend;
  Engine& engine;
  Call& call;
  PyObject* tensor;
  py::object out;
  Operand operand;
};

using Current = std::unique_ptr<hvd_engine, void (*)(hvd_engine*)>;

Current current() {
  return {c_api::current(), [](hvd_engine* engine) {
            if (engine != nullptr) c_api::release(engine);
          }};
}

// What `then` gives for the usual case; null, without an error: declined, nothing has happened.
template <typename Then>
PyObject* if_usual(PyObject* self, PyObject* const* args, Py_ssize_t count, const Then& then) {
  auto& frontend = *static_cast<Frontend*>(PyCapsule_GetPointer(self, kFrontend));
  if (count != 8 || args[7] != frontend.everybody.ptr()) return nullptr;
  PyObject* const name = args[3];
  Signature how;
  if (name != Py_None && !PyUnicode_CheckExact(name)) return nullptr;
  if (!read_how(args[2], args[4], args[5], args[6], how)) return nullptr;
  const Current now = current();
  if (now == nullptr) return nullptr;
  View in, result;
  if (!view_tensor(frontend.tensors, args[0], in) || !is_usual(in.dtype, how.op)) return nullptr;
  const bool in_place = args[1] == args[0];
  auto out = py::reinterpret_steal<py::object>(in_place ? Py_NewRef(args[0])
                                                        : PyObject_CallOneArg(args[1], args[0]));
  if (!out) throw py::error_already_set();
  if (!in_place && !view_tensor(frontend.tensors, out.ptr(), result)) return nullptr;
  Call& call = place_of(frontend, name);
  if (!known(call, name, how, in)) {
    auto request = made(name, how, in);
    if (!request) {  // a name that is no text
      declined();
      return nullptr;
    }
    call = {py::reinterpret_borrow<py::object>(name), how, std::move(*request)};
  }
  const Operand operand{in.data, in_place ? in.data : result.data, count_of(in)};
  return then(Asked{frontend, *now->engine, call, args[0], std::move(out), operand});
}

// An interrupt ends the wait, not the operation: the handle can be waited for again.
PyObject* run(const Asked& asked) {
  Engine& engine = asked.engine;
  const TaskPtr task =
      value_or_raise(engine.give(asked.call.request, {asked.operand}, Next::kWaits));
  try {
    wait_until_done(engine, task);
  } catch (py::error_already_set&) {
    FastHandles& handles = asked.frontend.handles;
    if (is_known(engine, task->handle)) {
      handles.hold(handles.owner_of(engine), engine, task, asked.tensor, asked.out.ptr());
    }
    throw;
  }
  return Py_NewRef(asked.out.ptr());
}

PyObject* begin(const Asked& asked) {
  Engine& engine = asked.engine;
  FastHandles& handles = asked.frontend.handles;
  Request request = asked.call.request;
  const py::object owner = handles.owner_of(engine);
  if (!owner) return nullptr;
  const TaskPtr task =
      value_or_raise(engine.give(std::move(request), {asked.operand}, Next::kBegins));
  handles.hold(owner, engine, task, asked.tensor, asked.out.ptr());
  begin_here(engine, task);
  return PyLong_FromLongLong(task->handle);
}

// None: declined.
template <typename Then>
PyObject* if_usual_or_none(PyObject* self, PyObject* const* args, Py_ssize_t count,
                           const Then& then) {
  return raising([&] {
    PyObject* const result = if_usual(self, args, count, then);
    return result != nullptr || PyErr_Occurred() != nullptr ? result : Py_NewRef(Py_None);
  });
}

PyObject* allreduce(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return if_usual_or_none(self, args, count, run);
}

PyObject* allreduce_async(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return if_usual_or_none(self, args, count, begin);
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

std::array methods{
    PyMethodDef{"allreduce_at_once", as_method(&allreduce), METH_FASTCALL,
                "(tensor, out, average, name, op, prescale, postscale, process_set) -> the output, "
                "which is the tensor where out is, else made by out(tensor); None: declined, "
                "nothing has happened"},
    PyMethodDef{"allreduce_begun", as_method(&allreduce_async), METH_FASTCALL,
                "the same -> a handle; None: declined, nothing has happened"}};

py::object fast_allreduce(py::object type, py::object subtype, const py::object& exchange,
                          py::object everybody, py::dict live, py::object owner) {
  auto frontend =
      std::unique_ptr<Frontend>(new Frontend{{std::move(type), std::move(subtype), exchange},
                                             std::move(everybody),
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
