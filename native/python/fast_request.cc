#include "python/fast_request.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr const char* kExchange = "dlpack_exchange_api";

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

// Only a method of torch tells whether a view's elements are the negative of those in memory.
bool is_negative(const TensorKind& kind, PyObject* tensor) {
  PyObject* const said = PyObject_CallOneArg(kind.is_negative.ptr(), tensor);
  if (said == nullptr) PyErr_Clear();
  Py_XDECREF(said);
  return said != Py_False;
}

}  // namespace

TensorKind::TensorKind(py::object type, py::object subtype, const py::object& functions) {
  if (!functions.is_none()) {
    exchange =
        static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(functions.ptr(), kExchange));
    if (exchange == nullptr) throw py::error_already_set();
    is_negative = type.attr("is_neg");
  }
  types = {std::move(type), std::move(subtype)};
}

bool declined() {
  PyErr_Clear();
  return false;
}

bool view_tensor(const TensorKind& kind, PyObject* tensor, View& view) {
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  if (type != kind.types[0].ptr() && type != kind.types[1].ptr()) return false;
  if (kind.exchange == nullptr) return view_buffer(tensor, view);
  DLTensor found{};
  if (kind.exchange->tensor_from(tensor, &found) != 0) return declined();
  const bool here = found.device.device_type == kDLCPU && found.dtype.code != kDLComplex;
  const auto dtype = c_api::known_dtype(found.dtype);
  if (!here || !dtype || !c_api::contiguous(found) || is_negative(kind, tensor)) return false;
  view.dtype = *dtype;
  view.data = c_api::data_of(found);
  view.shape = found.shape;
  view.dims = static_cast<std::size_t>(found.ndim);
  return true;
}

bool view_tensors(const TensorKind& kind, PyObject* const* tensors, Views& views) {
  return std::all_of(views.begin(), views.end(),
                     [&](View& view) { return view_tensor(kind, *tensors++, view); });
}

namespace {

bool same_tensor(const View& view, const TensorMeta& tensor) {
  return tensor.dtype == view.dtype && view.dims == tensor.shape.size() &&
         std::equal(tensor.shape.begin(), tensor.shape.end(), view.shape);
}

bool same_name(PyObject* a, PyObject* b) {
  return a == b || (a != Py_None && b != Py_None && PyUnicode_Compare(a, b) == 0);
}

std::optional<Request> made(PyObject* name, const Signature& how, const Views& tensors) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.op = static_cast<ReduceOp>(how.op);
  request.prescale = how.prescale;
  request.postscale = how.postscale;
  if (name != Py_None && PyUnicode_GET_LENGTH(name) > 0) {
    const char* const text = PyUnicode_AsUTF8(name);
    if (text == nullptr) return std::nullopt;
    const char* const before = how.whole_name ? ""
                               : how.grouped  ? "grouped_allreduce."
                                              : "allreduce.";
    request.name = std::string(before) + text;
  }
  request.tensors.reserve(tensors.size());
  for (const View& view : tensors) {
    TensorMeta& meta = request.tensors.emplace_back();
    meta.dtype = view.dtype;
    meta.shape.assign(view.shape, view.shape + view.dims);
  }
  return request;
}

}  // namespace

bool read_how(PyObject* average, PyObject* op, PyObject* before, PyObject* after, Signature& how) {
  if (average != Py_None || !PyFloat_CheckExact(before) || !PyFloat_CheckExact(after)) return false;
  if (op != Py_None && !PyLong_CheckExact(op)) return false;
  const long number = op == Py_None ? 0 : PyLong_AsLong(op);
  if (number < 0 || number >= kReduceOpCount) return declined();
  how.op = static_cast<int>(number);
  how.prescale = PyFloat_AS_DOUBLE(before);
  how.postscale = PyFloat_AS_DOUBLE(after);
  return true;
}

bool is_usual(Dtype dtype, int op) {
  constexpr std::array kUsual{Dtype::kUint8,   Dtype::kInt8,    Dtype::kUint16,  Dtype::kInt16,
                              Dtype::kInt32,   Dtype::kInt64,   Dtype::kFloat16, Dtype::kFloat32,
                              Dtype::kFloat64, Dtype::kBfloat16};
  const bool adasum = op == static_cast<int>(ReduceOp::kAdasum);
  return !adasum && std::find(kUsual.begin(), kUsual.end(), dtype) != kUsual.end();
}

std::shared_ptr<PersistentRequest> KeptRequest::persistent(const Engine& engine) {
  if (engine_ != engine.serial()) {
    engine_ = engine.serial();
    persistent_ = engine.persistent(request);
  }
  return persistent_;
}

bool FastRequests::same(const KeptRequest& kept, PyObject* name, const Signature& how,
                        const Views& tensors) {
  return kept.name && same_name(kept.name.ptr(), name) && kept.how == how &&
         std::equal(tensors.begin(), tensors.end(), kept.request.tensors.begin(),
                    kept.request.tensors.end(), same_tensor);
}

KeptRequest* FastRequests::find(PyObject* name, const Signature& how, const Views& tensors) {
  const auto hash = static_cast<std::size_t>(name == Py_None ? 0 : PyObject_Hash(name));
  KeptRequest& kept = kept_[(hash + tensors.size() - 1) % kMost];
  if (same(kept, name, how, tensors)) return &kept;
  auto request = made(name, how, tensors);
  if (!request) {
    declined();
    return nullptr;
  }
  kept = {};
  kept.name = py::reinterpret_borrow<py::object>(name);
  kept.how = how;
  kept.request = std::move(*request);
  return &kept;
}

}  // namespace hvd::python
