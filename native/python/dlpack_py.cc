// DLPack capsules: the address of another library's tensor, and the core's memory as a tensor.
// Version before 1, which every library still produces and accepts.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "c_api/tensor.h"
#include "engine/execution/buffer.h"
#include "python/errors_py.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using namespace py::literals;

constexpr const char* kName = "dltensor";  // until it is consumed

struct ManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

// The owner of the memory in a capsule of the core. Its consumer deletes it on any thread, without
// Python.
struct Lent {
  ManagedTensor managed{};
  std::shared_ptr<Buffer> buffer;
  std::vector<std::int64_t> shape;
};

// (pointer, shape, dtype, device); the capsule keeps the memory alive.
py::tuple place_of(const py::object& capsule) {
  const auto* const managed =
      static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  if (managed == nullptr) throw py::error_already_set();
  const TensorMeta meta = value_or_raise(c_api::meta_of(managed->tensor, "the array"));
  const auto pointer = reinterpret_cast<std::uintptr_t>(c_api::data_of(managed->tensor));
  return py::make_tuple(pointer, py::tuple(py::cast(meta.shape)), static_cast<int>(meta.dtype),
                        meta.device);
}

void end_unless_taken(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName) == 0) return;
  auto* const managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, kName));
  managed->deleter(managed);
}

py::object capsule_of(const std::shared_ptr<Buffer>& buffer) {
  auto lent = std::make_unique<Lent>();
  lent->buffer = buffer;
  lent->shape = buffer->shape;
  lent->managed.tensor = {buffer->data(),
                          c_api::dlpack_device(buffer->device),
                          static_cast<std::int32_t>(lent->shape.size()),
                          c_api::dlpack_type(buffer->dtype),
                          lent->shape.data(),
                          nullptr,
                          0};
  lent->managed.context = lent.get();
  lent->managed.deleter = [](ManagedTensor* self) {
    const std::unique_ptr<Lent> ended(static_cast<Lent*>(self->context));
  };
  PyObject* const capsule = PyCapsule_New(&lent->managed, kName, &end_unless_taken);
  if (capsule == nullptr) throw py::error_already_set();
  (void)lent.release();
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

void define_dlpack(py::module_& module) {
  module.def("dlpack_place", &place_of, "capsule"_a);
  module.def("dlpack_capsule", &capsule_of, "buffer"_a);
}

}  // namespace hvd::python
