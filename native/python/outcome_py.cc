// What an operation gives back: the core's memory as Python's buffers, and shared memory as
// memoryviews that keep the mapping.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/buffer.h"
#include "engine/engine.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

py::buffer_info bytes_of(void* data, std::size_t bytes) {
  return py::buffer_info(data, 1, py::format_descriptor<std::uint8_t>::format(),
                         static_cast<py::ssize_t>(bytes));
}

}  // namespace

void define_outcome(py::module_& module) {
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
      .def_buffer([](Buffer& self) { return bytes_of(self.data(), self.bytes); });
  py::class_<Outcome>(module, "Outcome", py::is_final())
      .def_property_readonly("buffers", [](const Outcome& self) { return self.outputs; })
      .def_property_readonly("sizes", [](const Outcome& self) { return self.sizes; })
      .def_property_readonly("number", [](const Outcome& self) { return self.number; });
  py::class_<SharedPart>(module, "_SharedPart", py::buffer_protocol(), py::is_final())
      .def_buffer([](SharedPart& self) { return bytes_of(self.data, self.bytes); });
}

py::object shared_memory(const Engine& self, std::int64_t region) {
  SharedPart part = self.part_of(region);
  if (part.data == nullptr) {
    throw py::value_error("there is no shared region " + std::to_string(region));
  }
  return py::memoryview(py::cast(std::move(part)));
}

}  // namespace hvd::python
