#include "python/fast_request.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace hvd::python {
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
    request.name = std::string(how.grouped ? "grouped_allreduce." : "allreduce.") + text;
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
