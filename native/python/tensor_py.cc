#include "python/tensor_py.h"

#include <memory>
#include <string>

#include "engine/buffer.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {

void add_tensor(const PyTensor& tensor, Request& request, std::vector<Operand>& operands) {
  const auto& [in, out, shape, dtype] = tensor;
  if (dtype < 0 || dtype >= kDtypeCount) {
    throw py::value_error("dtype number " + std::to_string(dtype) + " is not between 0 and " +
                          std::to_string(kDtypeCount - 1));
  }
  TensorMeta meta;
  meta.dtype = static_cast<Dtype>(dtype);
  meta.shape = shape;
  Operand operand;
  operand.in = reinterpret_cast<const void*>(in);
  operand.out = reinterpret_cast<void*>(out);
  operand.count = static_cast<std::size_t>(meta.count());
  operands.push_back(operand);
  request.tensors.push_back(std::move(meta));
}

void define_buffer(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", py::buffer_protocol(),
                                              py::is_final())
      .def_property_readonly("shape",
                             [](const Buffer& self) { return py::tuple(py::cast(self.shape)); })
      .def_property_readonly("dtype",
                             [](const Buffer& self) { return static_cast<int>(self.dtype); })
      .def_property_readonly(
          "pointer",
          [](const Buffer& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def("__len__", [](const Buffer& self) { return self.bytes; })
      .def_buffer([](Buffer& self) {
        return py::buffer_info(self.data(), 1, py::format_descriptor<std::uint8_t>::format(),
                               static_cast<py::ssize_t>(self.bytes));
      });
}

}  // namespace hvd::python
