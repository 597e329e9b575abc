// A frontend's blocking allreduce in one function, for the usual case: one contiguous tensor on the
// host, all ranks, nothing to convert. Arguments are read as they lie on Python's stack, and the
// request of a name, type and shape is kept. Whatever is not quite so is declined, and goes the
// ordinary way, which has the errors.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/current.h"
#include "c_api/tensor.h"
#include "python/errors_py.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr std::chrono::milliseconds kSlice(20);  // between two looks at Python's signals
constexpr std::size_t kCalls = 1024;  // requests that are kept; a newer takes an older one's place
constexpr const char* kExchange = "dlpack_exchange_api";
constexpr const char* kFrontend = "hvd_kernel frontend";

// What a tensor is, while this lives.
struct View {
  View() = default;
  ~View() {
    if (buffer.obj != nullptr) PyBuffer_Release(&buffer);
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  void* data = nullptr;
  Dtype dtype = Dtype::kFloat32;
  const std::int64_t* shape = nullptr;
  std::size_t dims = 0;
  Py_buffer buffer{};
};

struct Signature {
  int op = 0;
  double prescale = 1.0, postscale = 1.0;
};

struct Call {
  py::object name;
  Signature how;
  Request request;
};

// One framework's tensors. Never destroyed: functions have it.
struct Frontend {
  std::array<py::object, 2> types;
  const DLPackExchangeAPI* exchange = nullptr;  // null: tensors have Python's buffers
  py::object everybody;                         // the process set of all ranks
  py::object keep;  // called with a handle and tensors: the core has their memory still
  py::object is_negative;
  std::array<Call, kCalls> calls;
};

std::optional<Dtype> dtype_of_format(const char* format, py::ssize_t item) {
  if (format == nullptr || format[0] == '\0') return std::nullopt;
  const bool complex = format[0] == 'Z';
  const char kind = format[complex ? 1 : 0];
  if (format[complex ? 2 : 1] != '\0') return std::nullopt;
  const auto bits = static_cast<std::uint8_t>(8 * item);
  if (complex) return c_api::known_dtype({kDLComplex, bits, 1});
  if (kind == '?') return c_api::known_dtype({kDLBool, bits, 1});
  constexpr std::string_view kSigned = "bhilq", kUnsigned = "BHILQ", kFloats = "efd";
  if (kSigned.find(kind) != std::string_view::npos) return c_api::known_dtype({kDLInt, bits, 1});
  if (kUnsigned.find(kind) != std::string_view::npos) return c_api::known_dtype({kDLUInt, bits, 1});
  if (kFloats.find(kind) != std::string_view::npos) return c_api::known_dtype({kDLFloat, bits, 1});
  return std::nullopt;
}

static_assert(sizeof(py::ssize_t) == sizeof(std::int64_t), "a buffer's shape is read as it lies");

bool declined() {
  PyErr_Clear();
  return false;
}

bool view_buffer(PyObject* tensor, View& view) {
  constexpr int kFlags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE;
  if (PyObject_GetBuffer(tensor, &view.buffer, kFlags) != 0) return declined();
  const auto dtype = dtype_of_format(view.buffer.format, view.buffer.itemsize);
  if (!dtype) return false;
  view.dtype = *dtype;
  view.data = view.buffer.buf;
  view.shape = reinterpret_cast<const std::int64_t*>(view.buffer.shape);
  view.dims = static_cast<std::size_t>(view.buffer.ndim);
  return true;
}

// torch says by a method alone that a view's elements are the negative of those in memory.
bool is_negative(const Frontend& frontend, PyObject* tensor) {
  PyObject* const said = PyObject_CallOneArg(frontend.is_negative.ptr(), tensor);
  if (said == nullptr) PyErr_Clear();
  Py_XDECREF(said);
  return said != Py_False;
}

bool view_tensor(const Frontend& frontend, PyObject* tensor, View& view) {
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (type != frontend.types[0].ptr() && type != frontend.types[1].ptr()) return false;
  if (frontend.exchange == nullptr) return view_buffer(tensor, view);
  DLTensor found{};
  if (frontend.exchange->tensor_from(tensor, &found) != 0) return declined();
  const bool here = found.device.device_type == kDLCPU && found.dtype.code != kDLComplex;
  const auto dtype = c_api::known_dtype(found.dtype);
  if (!here || !dtype || !c_api::contiguous(found) || is_negative(frontend, tensor)) return false;
  view.dtype = *dtype;
  view.data = c_api::data_of(found);
  view.shape = found.shape;
  view.dims = static_cast<std::size_t>(found.ndim);
  return true;
}

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

// An interrupt ends the wait, not the operation: the handle can be waited for again.
void interrupted(const Frontend& frontend, std::int64_t handle, PyObject* tensor, PyObject* out) {
  py::error_already_set error;
  frontend.keep(handle, py::handle(tensor), py::handle(out));
  throw error;
}

void run(const Frontend& frontend, Engine& engine, const Call& call, PyObject* tensor,
         PyObject* out, const Operand& operand) {
  const std::int64_t handle = value_or_raise(engine.enqueue(call.request, {operand}, true));
  for (bool done = false; !done;) {
    const Result<bool> result = [&] {
      const py::gil_scoped_release unlocked;
      return engine.help(handle, kSlice);
    }();
    done = value_or_raise(result);
    if (!done && PyErr_CheckSignals() != 0) interrupted(frontend, handle, tensor, out);
  }
  const auto outcome = value_or_raise(engine.wait(handle, {}));
  if (!outcome->status) raise(outcome->status);
}

// tensor, out, average, name, op, prescale, postscale, process set. True: it is done; False:
// declined, nothing has happened.
PyObject* allreduce(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  auto& frontend = *static_cast<Frontend*>(PyCapsule_GetPointer(self, kFrontend));
  if (count != 8 || args[7] != frontend.everybody.ptr()) Py_RETURN_FALSE;
  PyObject* const name = args[3];
  Signature how;
  if (name != Py_None && !PyUnicode_CheckExact(name)) Py_RETURN_FALSE;
  if (!read_how(args[2], args[4], args[5], args[6], how)) Py_RETURN_FALSE;
  const std::unique_ptr<hvd_engine, void (*)(hvd_engine*)> current(c_api::current(),
                                                                   [](hvd_engine* engine) {
                                                                     if (engine != nullptr)
                                                                       c_api::release(engine);
                                                                   });
  if (current == nullptr) Py_RETURN_FALSE;
  try {
    View in, result;
    if (!view_tensor(frontend, args[0], in)) Py_RETURN_FALSE;
    if (!is_usual(in.dtype, how.op)) Py_RETURN_FALSE;
    const bool in_place = args[1] == args[0];
    if (!in_place && !view_tensor(frontend, args[1], result)) Py_RETURN_FALSE;
    Call& call = place_of(frontend, name);
    Engine& engine = *current->engine;
    if (!known(call, name, how, in)) {
      auto request = made(name, how, in);
      if (!request) {  // a name that is no text
        declined();
        Py_RETURN_FALSE;
      }
      call = {py::reinterpret_borrow<py::object>(name), how, std::move(*request)};
    }
    run(frontend, engine, call, args[0], args[1],
        {in.data, in_place ? in.data : result.data, count_of(in)});
    Py_RETURN_TRUE;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef allreduce_method = {
    "allreduce_at_once", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allreduce)),
    METH_FASTCALL,
    "(tensor, out, average, name, op, prescale, postscale, process_set) -> whether it is done"};

py::object fast_allreduce(py::object type, py::object subtype, const py::object& exchange,
                          py::object everybody, py::object keep) {
  auto frontend = std::make_unique<Frontend>();
  if (!exchange.is_none()) {
    frontend->exchange =
        static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(exchange.ptr(), kExchange));
    if (frontend->exchange == nullptr) throw py::error_already_set();
    if (frontend->exchange->header.version.major != 1) return py::none();
    frontend->is_negative = type.attr("is_neg");
  }
  frontend->types = {std::move(type), std::move(subtype)};
  frontend->everybody = std::move(everybody);
  frontend->keep = std::move(keep);
  const py::capsule self(frontend.release(), kFrontend);
  return py::reinterpret_steal<py::object>(
      PyCFunction_NewEx(&allreduce_method, self.ptr(), nullptr));
}

}  // namespace

void define_fast_calls(py::module_& module) { module.def("fast_allreduce", &fast_allreduce); }

}  // namespace hvd::python
