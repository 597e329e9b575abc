// The class Engine: checks what Python gives, leaves the GIL to others while it waits, and turns
// outcomes into values or exceptions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "base/deadline.h"
#include "engine/engine.h"
#include "python/bootstrap_py.h"
#include "python/errors_py.h"
#include "python/module.h"
#include "python/tensor_py.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using namespace py::literals;
using Table = std::map<std::string, std::string>;

// Between two looks at Python's signals (Ctrl-C) while a thread waits.
constexpr std::chrono::milliseconds kSlice(20);

// An engine leaves before it goes, which may take a while.
struct LeaveUnlocked {
  void operator()(Engine* engine) const {
    const py::gil_scoped_release unlocked;
    delete engine;  // NOLINT: the holder of a Python object
  }
};
using Holder = std::unique_ptr<Engine, LeaveUnlocked>;

Holder from_callable(int rank, int size, const py::object& exchange, const EngineOptions& options) {
  CallableBootstrap bootstrap(exchange);
  Result<std::unique_ptr<Engine>> engine = [&] {
    const py::gil_scoped_release unlocked;
    return Engine::start(rank, size, bootstrap, options);
  }();
  if (!engine) bootstrap.rethrow();
  return Holder(value_or_raise(std::move(engine)).release());
}

Holder start(int rank, int size, const py::object& exchange, const Table& table) {
  const EngineOptions options = value_or_raise(parse_options(table));
  if (!py::isinstance<LocalHub>(exchange)) return from_callable(rank, size, exchange, options);
  auto mesh = exchange.cast<LocalHub&>().take(rank, size);
  return Holder(std::make_unique<Engine>(std::move(mesh), options).release());
}

Request request_of(Kind kind, const std::string& name) {
  Request request;
  request.kind = kind;
  request.name = name;
  return request;
}

std::int64_t enqueue(Engine& self, Request request, const std::vector<PyTensor>& tensors) {
  std::vector<Operand> operands;
  for (const PyTensor& tensor : tensors) add_tensor(tensor, request, operands);
  return value_or_raise(self.enqueue(std::move(request), std::move(operands)));
}

std::int64_t allreduce(Engine& self, const std::string& name, const std::vector<PyTensor>& tensors,
                       int op, double prescale, double postscale) {
  if (op < 0 || op >= kReduceOpCount) {
    throw py::value_error("reduction op " + std::to_string(op) + " does not exist");
  }
  Request request = request_of(Kind::kAllreduce, name);
  request.op = static_cast<ReduceOp>(op);
  request.prescale = prescale;
  request.postscale = postscale;
  return enqueue(self, std::move(request), tensors);
}

std::int64_t allgather(Engine& self, const std::string& name,
                       const std::tuple<std::uintptr_t, Shape, int>& tensor) {
  const auto& [in, shape, dtype] = tensor;
  return enqueue(self, request_of(Kind::kAllgather, name), {{in, 0, shape, dtype}});
}

std::int64_t broadcast(Engine& self, const std::string& name, const PyTensor& tensor, int root) {
  Request request = request_of(Kind::kBroadcast, name);
  request.root = root;
  return enqueue(self, std::move(request), {tensor});
}

std::int64_t barrier(Engine& self, const std::string& name) {
  return enqueue(self, request_of(Kind::kBarrier, name), {});
}

bool poll(const Engine& self, std::int64_t handle) { return value_or_raise(self.poll(handle)); }

std::shared_ptr<Buffer> wait(Engine& self, std::int64_t handle, double timeout_s) {
  const Deadline deadline = timeout_s < 0 ? Deadline::never() : Deadline::after_seconds(timeout_s);
  for (;;) {
    Result<std::unique_ptr<Outcome>> result = [&] {
      const py::gil_scoped_release unlocked;
      return self.wait(handle, std::min<std::chrono::nanoseconds>(deadline.remaining(), kSlice));
    }();
    const std::unique_ptr<Outcome> outcome = value_or_raise(std::move(result));
    if (outcome != nullptr && !outcome->status) raise(outcome->status);
    if (outcome != nullptr) return outcome->output;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!deadline.expired()) continue;
    const std::string late = " is not done after " + std::string(py::str(py::float_(timeout_s)));
    raise(Status::make(Code::kTimeout, "handle " + std::to_string(handle) + late + " s", "wait"));
  }
}

py::object aborted(const Engine& self) {
  const Status status = self.ended();
  return status ? py::object(py::none()) : py::object(py::str(status.message));
}

py::list pending(const Engine& self) {
  py::list list;
  for (const Pending& one : self.pending()) {
    list.append(py::dict("name"_a = one.name, "op"_a = lower_name_of(one.kind),
                         "seconds"_a = one.seconds, "missing"_a = one.missing));
  }
  return list;
}

py::dict counters(const Engine& self) {
  const Counters& from = self.counters();
  return py::dict("ops"_a = from.ops.load(), "bytes"_a = from.bytes.load(),
                  "busy_ns"_a = from.busy_ns.load(), "wait_ns"_a = from.wait_ns.load(),
                  "cycles"_a = from.cycles.load());
}

py::tuple trace(const Engine& self, std::uint64_t cursor) {
  py::list list;
  for (const TraceRecord& one : self.trace(cursor)) {
    list.append(py::make_tuple(one.start_ns, one.duration_ns, one.phase, one.name, one.bytes));
  }
  return py::make_tuple(cursor, list);
}

std::string transport_to(const Engine& self, int peer) {
  if (peer >= 0 && peer < self.topology().size) return self.transport_to(peer);
  throw py::value_error("there is no rank " + std::to_string(peer));
}

template <auto kField>
auto topology_field() {
  return [](const Engine& self) { return self.topology().*kField; };
}

}  // namespace

void define_engine(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<Engine, Holder>(module, "Engine", py::is_final())
      .def(py::init(&start), "rank"_a, "size"_a, "exchange"_a, "options"_a = Table{})
      .def_property_readonly("rank", topology_field<&Topology::rank>())
      .def_property_readonly("size", topology_field<&Topology::size>())
      .def_property_readonly("local_rank", topology_field<&Topology::local_rank>())
      .def_property_readonly("local_size", topology_field<&Topology::local_size>())
      .def_property_readonly("cross_rank", topology_field<&Topology::cross_rank>())
      .def_property_readonly("cross_size", topology_field<&Topology::cross_size>())
      .def_property_readonly("is_homogeneous", topology_field<&Topology::homogeneous>())
      .def("transport_to", &transport_to, "peer"_a)
      .def("allreduce", &allreduce, "name"_a, "tensors"_a, "op"_a, "prescale"_a = 1.0,
           "postscale"_a = 1.0)
      .def("allgather", &allgather, "name"_a, "tensor"_a)
      .def("broadcast", &broadcast, "name"_a, "tensor"_a, "root_rank"_a)
      .def("barrier", &barrier, "name"_a = "")
      .def("poll", &poll, "handle"_a)
      .def("wait", &wait, "handle"_a, "timeout_s"_a = -1.0)
      .def("abort", &Engine::abort, "message"_a, unlocked)
      .def("aborted", &aborted)
      .def("pending", &pending)
      .def("counters", &counters)
      .def("trace", &trace, "cursor"_a)
      .def("shutdown", &Engine::shutdown, unlocked);
}

}  // namespace hvd::python
