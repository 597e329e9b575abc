// Results of operations: the core's memory as Python buffers (on a device: with the CUDA array
// interface), events, and shared memory as memoryviews that keep the mapping.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/engine.h"
#include "engine/execution/buffer.h"
#include "python/module.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using namespace py::literals;

py::buffer_info bytes_of(void* data, std::size_t bytes) {
  return py::buffer_info(data, 1, py::format_descriptor<std::uint8_t>::format(),
                         static_cast<py::ssize_t>(bytes));
}

py::buffer_info bytes_on_host(const Buffer& buffer) {
  if (buffer.device == kCpu) return bytes_of(buffer.data(), buffer.bytes);
  throw py::buffer_error("the memory is on device " + std::to_string(buffer.device) +
                         ": __cuda_array_interface__ tells where");
}

std::uintptr_t pointer_of(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data());
}

// Version 3. Bytes, as on the host: not every dtype has a name there. stream None: the frontend's
// stream waits for the event, so no further synchronisation is needed.
py::dict cuda_array(const Buffer& buffer) {
  if (buffer.device == kCpu) throw py::attribute_error("the memory is on the host");
  const std::uintptr_t pointer = buffer.bytes > 0 ? pointer_of(buffer) : 0;
  return py::dict("shape"_a = py::make_tuple(buffer.bytes), "typestr"_a = "|u1",
                  "data"_a = py::make_tuple(pointer, false), "version"_a = 3,
                  "strides"_a = py::none(), "stream"_a = py::none());
}

void stream_wait(DeviceEvent& event, std::uintptr_t stream) {
  const Status status = [&] {
    const py::gil_scoped_release unlocked;
    return event.stream_wait(reinterpret_cast<void*>(stream));  // NOLINT(performance-no-int-to-ptr)
  }();
  if (!status) raise(status);
}

bool query(DeviceEvent& event) {
  return value_or_raise([&] {
    const py::gil_scoped_release unlocked;
    return event.query();
  }());
}

}  // namespace

void define_outcome(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", py::buffer_protocol(),
                                              py::is_final())
      .def_property_readonly("shape",
                             [](const Buffer& self) { return py::tuple(py::cast(self.shape)); })
      .def_property_readonly("dtype",
                             [](const Buffer& self) { return static_cast<int>(self.dtype); })
      .def_property_readonly("pointer", &pointer_of)
      .def_readonly("device", &Buffer::device)
      .def_property_readonly("__cuda_array_interface__", &cuda_array)
      .def("__len__", [](const Buffer& self) { return self.bytes; })
      .def_buffer([](Buffer& self) { return bytes_on_host(self); });
  py::class_<DeviceEvent, DeviceEventPtr>(module, "DeviceEvent", py::is_final())
      .def("stream_wait", &stream_wait, "stream"_a)
      .def("query", &query);
  py::class_<Outcome>(module, "Outcome", py::is_final())
      .def_property_readonly("buffers", [](const Outcome& self) { return self.outputs; })
      .def_property_readonly("sizes", [](const Outcome& self) { return self.sizes; })
      .def_property_readonly("number", [](const Outcome& self) { return self.number; })
      .def_property_readonly("event", [](const Outcome& self) { return self.event; });
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
