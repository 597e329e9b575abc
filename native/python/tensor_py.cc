#include "python/tensor_py.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/tensor.h"
#include "engine/execution/buffer.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// The items of a sequence, borrowed while this lives.
class Items {
 public:
  explicit Items(py::handle sequence)
      : fast_(py::reinterpret_steal<py::object>(
            PySequence_Fast(sequence.ptr(), "a tuple or list is wanted"))) {
    if (!fast_) throw py::error_already_set();
  }
  std::size_t size() const {
    return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast_.ptr()));
  }
  py::handle operator[](std::size_t i) const {
    return PySequence_Fast_GET_ITEM(fast_.ptr(), static_cast<py::ssize_t>(i));
  }

 private:
  py::object fast_;
};

std::int64_t whole(py::handle number) {
  const std::int64_t value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

void* pointer(py::handle number) {
  void* const value = PyLong_AsVoidPtr(number.ptr());
  if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

Dtype dtype_of(py::handle number) {
  const std::int64_t value = whole(number);
  if (value >= 0 && value < kDtypeCount) return static_cast<Dtype>(value);
  throw py::value_error("dtype number " + std::to_string(value) + " is not between 0 and " +
                        std::to_string(kDtypeCount - 1));
}

int device_of(py::handle number) {
  const std::int64_t value = whole(number);
  if (value >= 0 && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  throw py::value_error("device " + std::to_string(value) + " is not a valid device number");
}

// One event stands for all inputs of a request.
void* stream_of(py::handle number, const Request& request, const Memory& memory) {
  void* const stream = pointer(number);
  if (!request.on_device() || stream == memory.stream) return stream;
  throw py::value_error("tensor " + std::to_string(request.tensors.size()) +
                        " is on another stream than tensor 0; one operation has one stream");
}

py::value_error wrong_size(std::size_t pointers, std::size_t size) {
  return py::value_error("a tensor is a tuple of " + std::to_string(pointers + 2) +
                         " values here, or of " + std::to_string(pointers + 4) +
                         " on a device, not of " + std::to_string(size));
}

}  // namespace

std::vector<std::int64_t> whole_numbers(py::handle sequence) {
  const Items items(sequence);
  std::vector<std::int64_t> values(items.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = whole(items[i]);
  return values;
}

void add_tensor(py::handle tensor, bool outputs, Request& request, Memory& memory) {
  const Items fields(tensor);
  const std::size_t pointers = outputs ? 2 : 1;
  const bool on_host = fields.size() == pointers + 2;
  if (!on_host && fields.size() != pointers + 4) throw wrong_size(pointers, fields.size());
  TensorMeta meta;
  meta.shape = whole_numbers(fields[pointers]);
  meta.dtype = dtype_of(fields[pointers + 1]);
  if (!on_host) {
    meta.device = device_of(fields[pointers + 2]);
    memory.stream = stream_of(fields[pointers + 3], request, memory);
  }
  Operand operand;
  operand.in = pointer(fields[0]);
  if (outputs) operand.out = pointer(fields[1]);
  operand.count = static_cast<std::size_t>(meta.count());
  memory.operands.push_back(operand);
  request.tensors.push_back(std::move(meta));
}

void add_tensors(py::handle sequence, bool outputs, Request& request, Memory& memory) {
  const Items tensors(sequence);
  request.tensors.reserve(tensors.size());
  memory.operands.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) add_tensor(tensors[i], outputs, request, memory);
}

// DLPack capsules: the address of another library's tensor, and the core's memory as a tensor.
// Version before 1, which every library still produces and accepts.

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
