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

using Table = std::map<std::string, std::string>;

// Between two looks at Python's signals (Ctrl-C) while a thread waits.
constexpr std::chrono::milliseconds kSlice(20);

class PyEngine {
 public:
  explicit PyEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~PyEngine() {
    const py::gil_scoped_release unlocked;
    engine_.reset();
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  Engine& engine() const { return *engine_; }
  const Topology& topology() const { return engine_->topology(); }

 private:
  std::unique_ptr<Engine> engine_;
};

std::unique_ptr<PyEngine> from_callable(int rank, int size, const py::object& exchange,
                                        const EngineOptions& options) {
  CallableBootstrap bootstrap(exchange);
  Result<std::unique_ptr<Engine>> engine = [&] {
    const py::gil_scoped_release unlocked;
    return Engine::start(rank, size, bootstrap, options);
  }();
  if (!engine) bootstrap.rethrow();
  return std::make_unique<PyEngine>(value_or_raise(std::move(engine)));
}

std::unique_ptr<PyEngine> start(int rank, int size, const py::object& exchange,
                                const Table& table) {
  const EngineOptions options = value_or_raise(parse_options(table));
  if (!py::isinstance<LocalHub>(exchange)) return from_callable(rank, size, exchange, options);
  auto mesh = value_or_raise(exchange.cast<LocalHub&>().take(rank, size));
  return std::make_unique<PyEngine>(std::make_unique<Engine>(std::move(mesh), options));
}

std::int64_t allreduce(const PyEngine& self, const std::string& name,
                       const std::vector<PyTensor>& tensors, int op, double prescale,
                       double postscale) {
  if (op < 0 || op >= kReduceOpCount) {
    throw py::value_error("reduction op " + std::to_string(op) + " does not exist");
  }
  Request request;
  request.kind = Kind::kAllreduce;
  request.name = name;
  request.op = static_cast<ReduceOp>(op);
  request.prescale = prescale;
  request.postscale = postscale;
  std::vector<Operand> operands;
  for (const PyTensor& tensor : tensors) add_tensor(tensor, request, operands);
  return value_or_raise(self.engine().enqueue(std::move(request), std::move(operands)));
}

std::int64_t allgather(const PyEngine& self, const std::string& name,
                       const std::tuple<std::uintptr_t, Shape, int>& tensor) {
  Request request;
  request.kind = Kind::kAllgather;
  request.name = name;
  std::vector<Operand> operands;
  add_tensor({std::get<0>(tensor), 0, std::get<1>(tensor), std::get<2>(tensor)}, request, operands);
  return value_or_raise(self.engine().enqueue(std::move(request), std::move(operands)));
}

std::int64_t broadcast(const PyEngine& self, const std::string& name, const PyTensor& tensor,
                       int root_rank) {
  Request request;
  request.kind = Kind::kBroadcast;
  request.name = name;
  request.root = root_rank;
  std::vector<Operand> operands;
  add_tensor(tensor, request, operands);
  return value_or_raise(self.engine().enqueue(std::move(request), std::move(operands)));
}

std::int64_t barrier(const PyEngine& self, const std::string& name) {
  Request request;
  request.kind = Kind::kBarrier;
  request.name = name;
  return value_or_raise(self.engine().enqueue(std::move(request), {}));
}

std::shared_ptr<Buffer> wait(const PyEngine& self, std::int64_t handle, double timeout_s) {
  const Deadline deadline = timeout_s < 0 ? Deadline::never() : Deadline::after_seconds(timeout_s);
  for (;;) {
    Result<std::unique_ptr<Outcome>> result = [&] {
      const py::gil_scoped_release unlocked;
      return self.engine().wait(handle,
                                std::min<std::chrono::nanoseconds>(deadline.remaining(), kSlice));
    }();
    const std::unique_ptr<Outcome> outcome = value_or_raise(std::move(result));
    if (outcome != nullptr && !outcome->status) raise(outcome->status);
    if (outcome != nullptr) return outcome->output;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (deadline.expired()) {
      raise(Status::make(Code::kTimeout,
                         "handle " + std::to_string(handle) + " is not done after " +
                             py::str(py::float_(timeout_s)).cast<std::string>() + " s",
                         "python/engine_py"));
    }
  }
}

py::object aborted(const PyEngine& self) {
  const Status status = self.engine().ended();
  return status ? py::object(py::none()) : py::object(py::str(status.message));
}

py::list pending(const PyEngine& self) {
  py::list list;
  for (const Pending& one : self.engine().pending()) {
    py::dict entry;
    entry["name"] = one.name;
    entry["op"] = lower_name_of(one.kind);
    entry["seconds"] = one.seconds;
    entry["missing"] = one.missing;
    list.append(entry);
  }
  return list;
}

py::dict counters(const PyEngine& self) {
  const Counters& from = self.engine().counters();
  py::dict table;
  table["ops"] = from.ops.load();
  table["bytes"] = from.bytes.load();
  table["busy_ns"] = from.busy_ns.load();
  table["wait_ns"] = from.wait_ns.load();
  table["cycles"] = from.cycles.load();
  return table;
}

py::tuple trace(const PyEngine& self, std::uint64_t cursor) {
  py::list list;
  for (const TraceRecord& record : self.engine().trace(cursor)) {
    list.append(py::make_tuple(record.start_ns, record.duration_ns, record.phase, record.name,
                               record.bytes));
  }
  return py::make_tuple(cursor, list);
}

std::string transport_to(const PyEngine& self, int peer) {
  if (peer < 0 || peer >= self.topology().size) {
    throw py::value_error("there is no rank " + std::to_string(peer));
  }
  return self.engine().transport_to(peer);
}

template <auto kField>
auto topology_field() {
  return [](const PyEngine& self) { return self.topology().*kField; };
}

}  // namespace

void define_engine(py::module_& module) {
  using namespace py::literals;
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<PyEngine>(module, "Engine", py::is_final())
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
      .def(
          "poll",
          [](const PyEngine& self, std::int64_t handle) {
            return value_or_raise(self.engine().poll(handle));
          },
          "handle"_a)
      .def("wait", &wait, "handle"_a, "timeout_s"_a = -1.0)
      .def(
          "abort",
          [](const PyEngine& self, const std::string& message) { self.engine().abort(message); },
          "message"_a, unlocked)
      .def("aborted", &aborted)
      .def("pending", &pending)
      .def("counters", &counters)
      .def("trace", &trace, "cursor"_a)
      .def("shutdown", [](const PyEngine& self) { self.engine().shutdown(); }, unlocked);
}

}  // namespace hvd::python
