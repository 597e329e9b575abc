#include "python/fast_tensor.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

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

}  // namespace hvd::python
