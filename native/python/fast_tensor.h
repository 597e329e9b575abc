// Framework tensors read in place, for fast_call.cc: where they lie, of which type and shape. By
// DLPack's exchange functions (torch) or Python's buffers (NumPy); compiled against neither.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "c_api/tensor.h"

namespace hvd::python {

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

// Those of one tensor, or of several.
class Views {
 public:
  explicit Views(std::size_t count)
      : count_(count), several_(count > 1 ? std::make_unique<View[]>(count) : nullptr) {}

  std::size_t size() const { return count_; }
  View* begin() { return several_ == nullptr ? &one_ : several_.get(); }
  View* end() { return begin() + count_; }
  const View* begin() const { return several_ == nullptr ? &one_ : several_.get(); }
  const View* end() const { return begin() + count_; }

 private:
  std::size_t count_;
  View one_;
  std::unique_ptr<View[]> several_;
};

// One framework's tensors.
struct TensorKind {
  TensorKind(pybind11::object type, pybind11::object subtype, const pybind11::object& exchange);
  // Whether its exchange functions, if it has any, are of a version that is known here.
  bool known() const { return exchange == nullptr || exchange->header.version.major == 1; }

  std::array<pybind11::object, 2> types;
  const DLPackExchangeAPI* exchange = nullptr;  // null: tensors have Python's buffers
  pybind11::object is_negative;
};

// False: it is none of these, or lies where only the ordinary way can read it.
bool view_tensor(const TensorKind& kind, PyObject* tensor, View& view);
bool view_tensors(const TensorKind& kind, PyObject* const* tensors, Views& views);

// A Python error that says no more than that this is not the usual case.
bool declined();

}  // namespace hvd::python
