// Framework tensors for fast_call.cc: address, type and shape, by DLPack's exchange functions
// (torch) or Python's buffers (NumPy); compiled against neither.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "c_api/tensor.h"
#include "engine/engine.h"
#include "engine/message/request.h"

namespace hvd::python {

// A tensor's description, valid while this lives.
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

// The views of one tensor, or of several.
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

// The tensors of one framework.
struct TensorKind {
  TensorKind(pybind11::object type, pybind11::object subtype, const pybind11::object& exchange);
  // True if its exchange functions, if any, have a supported version.
  bool known() const { return exchange == nullptr || exchange->header.version.major == 1; }

  std::array<pybind11::object, 2> types;
  const DLPackExchangeAPI* exchange = nullptr;  // nullptr: tensors have Python's buffers
  pybind11::object is_negative;
};

// False: not such a tensor, or its memory needs the ordinary path.
bool view_tensor(const TensorKind& kind, PyObject* tensor, View& view);
bool view_tensors(const TensorKind& kind, PyObject* const* tensors, Views& views);

// Clear a Python error that only means that this is not the usual case.
bool declined();

// Cache of allreduce requests for fast_call.cc, by name, types, shapes and reduction, so that
// repeated calls need not build them.

struct Signature {
  int op = 0;
  double prescale = 1.0, postscale = 1.0;
  bool grouped = false;     // several tensors under a group's name
  bool whole_name = false;  // without the name of the operation before it

  bool operator==(const Signature& other) const {
    return op == other.op && prescale == other.prescale && postscale == other.postscale &&
           grouped == other.grouped && whole_name == other.whole_name;
  }
};

// Parse Python's average, op, prescale and postscale. False: unusual types.
bool read_how(PyObject* average, PyObject* op, PyObject* before, PyObject* after, Signature& how);
// True if the ordinary path would not refuse it.
bool is_usual(Dtype dtype, int op);

struct KeptRequest {
  pybind11::object name;
  Signature how;
  Request request;

  // The engine's persistent request; nullptr: not supported.
  std::shared_ptr<PersistentRequest> persistent(const Engine& engine);

 private:
  std::uint64_t engine_ = 0;  // serial of its engine
  std::shared_ptr<PersistentRequest> persistent_;
};

class FastRequests {
 public:
  // name: a str or None. nullptr, without an error: another type.
  KeptRequest* find(PyObject* name, const Signature& how, const Views& tensors);

 private:
  static bool same(const KeptRequest& kept, PyObject* name, const Signature& how,
                   const Views& tensors);

  static constexpr std::size_t kMost = 1024;  // newer requests evict older ones
  std::array<KeptRequest, kMost> kept_{};
};

}  // namespace hvd::python
