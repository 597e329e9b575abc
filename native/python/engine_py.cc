// The class Engine: checks Python's arguments, releases the GIL during waits, and converts outcomes
// to values or exceptions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "base/deadline.h"
#include "c_api/current.h"
#include "engine/engine.h"
#include "engine/message/request.h"
#include "python/bootstrap_py.h"
#include "python/fast_handles.h"
#include "python/module.h"
#include "python/tensor_py.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

using namespace py::literals;
using Table = std::map<std::string, std::string>;

// An engine shuts down before it is destroyed, which may take a while. Python's reference is
// dropped with the GIL held; the last one, which plugins share, on any thread.
struct LeaveUnlocked {
  std::shared_ptr<Engine> engine;
  void operator()(Engine* /*its*/) {
    const py::gil_scoped_release unlocked;
    engine.reset();
  }
};
using Holder = std::shared_ptr<Engine>;

Holder held(std::shared_ptr<Engine> engine) {
  Engine* const its = engine.get();
  return {its, LeaveUnlocked{std::move(engine)}};
}

Holder from_callable(int rank, int size, const py::object& exchange, const EngineOptions& options) {
  CallableBootstrap callable(exchange);
  Bootstrap* const tcp = tcp_bootstrap_of(exchange);
  Result<std::unique_ptr<Engine>> engine = [&] {
    const py::gil_scoped_release unlocked;
    return Engine::start(rank, size, tcp == nullptr ? callable : *tcp, options);
  }();
  if (!engine) callable.rethrow();
  return held(value_or_raise(std::move(engine)));
}

Holder start(int rank, int size, const py::object& exchange, const Table& table) {
  const EngineOptions options = value_or_raise(parse_options(table));
  if (!py::isinstance<LocalHub>(exchange)) return from_callable(rank, size, exchange, options);
  auto mesh = exchange.cast<LocalHub&>().take(rank, size);
  return held(std::make_shared<Engine>(std::move(mesh), options));
}

void make_current(const Holder& self, bool current) {
  const py::gil_scoped_release unlocked;
  if (current) {
    c_api::make_current(std::get_deleter<LeaveUnlocked>(self)->engine);
  } else {
    c_api::resign(*self);
  }
}

// A request before its tensors are added. waits: the caller will wait for it at once.
struct Call {
  Request request;
  Memory memory;
  bool waits = false;

  Call(Kind kind, const std::string& name, int set, bool waits_next = false) : waits(waits_next) {
    request.kind = kind;
    request.name = name;
    request.set = set;
  }

  std::int64_t enqueue(Engine& engine) {
    if (request.on_device()) return enqueue_on_device(engine);
    const TaskPtr task = value_or_raise(engine.enqueue_task(
        std::move(request), std::move(memory.operands), waits ? Next::kWaits : Next::kBegins));
    if (waits) {
      help(engine, task);  // wait() returns the outcome
    } else {
      begin_now(engine, task);
    }
    return task->handle;
  }

 private:
  // A device's driver may block its callers, and device operations cannot be executed here.
  std::int64_t enqueue_on_device(Engine& engine) {
    return value_or_raise([&] {
      const py::gil_scoped_release unlocked;
      return engine.enqueue(std::move(request), std::move(memory.operands), Next::kContinues,
                            memory.stream);
    }());
  }
};

ReduceOp operation(int op) {
  if (op >= 0 && op < kReduceOpCount) return static_cast<ReduceOp>(op);
  throw py::value_error("reduction op " + std::to_string(op) + " does not exist");
}

template <Kind kKind>
std::int64_t reduce(Engine& self, const std::string& name, const py::object& tensors, int op,
                    double prescale, double postscale, int set, bool waits) {
  Call call(kKind, name, set, waits);
  call.request.op = operation(op);
  call.request.prescale = prescale;
  call.request.postscale = postscale;
  add_tensors(tensors, true, call.request, call.memory);
  return call.enqueue(self);
}

std::int64_t allgather(Engine& self, const std::string& name, const py::object& tensors, int set,
                       bool waits) {
  Call call(Kind::kAllgather, name, set, waits);
  add_tensors(tensors, false, call.request, call.memory);
  return call.enqueue(self);
}

std::int64_t broadcast(Engine& self, const std::string& name, const py::object& tensors,
                       int root_rank, int set, bool waits) {
  Call call(Kind::kBroadcast, name, set, waits);
  call.request.root = root_rank;
  add_tensors(tensors, true, call.request, call.memory);
  return call.enqueue(self);
}

std::int64_t alltoall(Engine& self, const std::string& name, const py::object& tensor,
                      const py::object& splits, int set, bool waits) {
  Call call(Kind::kAlltoall, name, set, waits);
  add_tensor(tensor, false, call.request, call.memory);
  call.request.sizes = splits.is_none()
                           ? value_or_raise(equal_shares(call.request, self.ranks_of(set).size()))
                           : whole_numbers(splits);
  return call.enqueue(self);
}

// With the memory of the tensors at `source`, and of the results at `destination`.
std::int64_t message(Engine& self, const py::object& tensors, int source, int destination,
                     std::int64_t tag, bool waits) {
  Call call(Kind::kSend, "", 0, waits);
  call.request = send_request(source, destination, tag, self.topology().size);
  add_tensors(tensors, true, call.request, call.memory);
  return call.enqueue(self);
}

std::int64_t send(Engine& self, const py::object& tensors, int destination, std::int64_t tag,
                  bool waits) {
  return message(self, tensors, self.topology().rank, destination, tag, waits);
}

std::int64_t recv(Engine& self, const py::object& tensors, int source, std::int64_t tag,
                  bool waits) {
  return message(self, tensors, source, self.topology().rank, tag, waits);
}

std::int64_t probe(Engine& self, std::int64_t tag, bool waits) {
  Call call(Kind::kProbe, "", 0, waits);
  call.request = probe_request(tag);
  return call.enqueue(self);
}

std::int64_t barrier(Engine& self, const std::string& name, int set, bool waits) {
  return Call(Kind::kBarrier, name, set, waits).enqueue(self);
}

// An operation of all ranks, in the global set and without a tensor.
std::int64_t agree(Engine& self, Kind kind, std::vector<std::int64_t> sizes) {
  Call call(kind, "", 0);
  call.request.sizes = std::move(sizes);
  return call.enqueue(self);
}

std::int64_t add_set(Engine& self, const py::object& ranks) {
  return agree(self, Kind::kAddSet, whole_numbers(ranks));
}

template <Kind kKind>
std::int64_t agree_on(Engine& self, std::int64_t number) {
  return agree(self, kKind, {number});
}

std::int64_t allocate(Engine& self, std::int64_t bytes, int device) {
  Call call(Kind::kAllocate, "", 0);
  call.request.sizes = {bytes};
  if (device != kCpu) {
    call.request.tensors.push_back({Dtype::kUint8, device, {bytes}});
    call.memory.operands.emplace_back();
  }
  return call.enqueue(self);
}

bool poll(Engine& self, std::int64_t handle) { return value_or_raise(self.poll(handle)); }

std::string device_trouble(Engine& self, int device) {
  const py::gil_scoped_release unlocked;
  return self.why_not_on(device);
}

py::object told(std::unique_ptr<Outcome> outcome) {
  if (!outcome->status) raise(outcome->status);
  const bool nothing = outcome->outputs.empty() && outcome->sizes.empty() && outcome->number < 0 &&
                       outcome->event == nullptr;
  return nothing ? py::object(py::none()) : py::cast(std::move(outcome));
}

py::object wait(Engine& self, std::int64_t handle, double timeout_s) {
  if (value_or_raise(self.poll(handle, false))) return told(value_or_raise(self.wait(handle, {})));
  const Deadline deadline = timeout_s < 0 ? Deadline::never() : Deadline::after_seconds(timeout_s);
  for (;;) {
    Result<std::unique_ptr<Outcome>> result = [&] {
      const py::gil_scoped_release unlocked;
      return self.wait(handle,
                       std::min<std::chrono::nanoseconds>(deadline.remaining(), kSignalCheck));
    }();
    std::unique_ptr<Outcome> outcome = value_or_raise(std::move(result));
    if (outcome != nullptr) return told(std::move(outcome));
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (!deadline.expired()) continue;
    const std::string late = " is not done after " + std::string(py::str(py::float_(timeout_s)));
    raise(Status::make(Code::kTimeout, "handle " + std::to_string(handle) + late + " s", "wait"));
  }
}

void start_timeline(Engine& self, const std::string& path, bool mark_cycles, bool goes_on) {
  const Status status = [&] {
    const py::gil_scoped_release unlocked;
    return self.start_timeline(path, mark_cycles, goes_on);
  }();
  if (!status) raise(status);
}

// seconds: of time.monotonic(), which uses the core's clock.
void blocked(Engine& self, double seconds, NamesInSets waits, std::vector<std::string> may_request,
             std::int64_t run, std::string place) {
  const py::gil_scoped_release unlocked;
  self.blocked({static_cast<std::int64_t>(seconds * 1e9), std::move(waits), std::move(may_request),
                run, std::move(place)});
}

void resumed(Engine& self) {
  Blocked withdrawal;
  withdrawal.resumed = true;
  self.blocked(withdrawal);
}

py::object aborted(const Engine& self) {
  const Status status = self.ended();
  return status ? py::object(py::none()) : py::object(py::str(status.message));
}

py::list pending(const Engine& self) {
  py::list list;
  for (const Pending& one : self.pending()) {
    list.append(py::dict("name"_a = one.name, "op"_a = lower_name_of(one.kind),
                         "seconds"_a = one.seconds, "process_set"_a = one.set,
                         "missing"_a = one.missing));
  }
  return list;
}

py::dict counters(const Engine& self) {
  const Counters* from = nullptr;
  {
    const py::gil_scoped_release unlocked;
    from = &self.counters();
  }
  return py::dict("ops"_a = from->ops.load(), "bytes"_a = from->bytes.load(),
                  "busy_ns"_a = from->busy_ns.load() + from->on_device_ns.load(),
                  "wait_ns"_a = from->wait_ns.load() + from->exposed_ns.load(),
                  "cycles"_a = from->cycles.load());
}

py::tuple trace(const Engine& self, std::uint64_t cursor) {
  py::list list;
  for (const TraceRecord& one : self.trace(cursor)) {
    list.append(
        py::make_tuple(one.start_ns, one.duration_ns, one.phase, one.name, one.bytes, one.detail));
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

using Class = py::class_<Engine, Holder>;

void define_collectives(Class& engine) {
  const auto set = "process_set"_a = 0;
  const auto waits = "waits"_a = false;
  const auto before = "prescale"_a = 1.0;
  const auto after = "postscale"_a = 1.0;
  engine
      .def("allreduce", &reduce<Kind::kAllreduce>, "name"_a, "tensors"_a, "op"_a, before, after,
           set, waits)
      .def("reducescatter", &reduce<Kind::kReducescatter>, "name"_a, "tensors"_a, "op"_a, before,
           after, set, waits)
      .def("allgather", &allgather, "name"_a, "tensors"_a, set, waits)
      .def("broadcast", &broadcast, "name"_a, "tensors"_a, "root_rank"_a, set, waits)
      .def("alltoall", &alltoall, "name"_a, "tensor"_a, "splits"_a = py::none(), set, waits)
      .def("barrier", &barrier, "name"_a = "", set, waits)
      .def("send", &send, "tensors"_a, "destination"_a, "tag"_a = 0, waits)
      .def("recv", &recv, "tensors"_a, "source"_a, "tag"_a = 0, waits)
      .def("probe", &probe, "tag"_a = 0, waits)
      .def("join", [](Engine& self) { return agree(self, Kind::kJoin, {}); })
      .def("add_process_set", &add_set, "ranks"_a)
      .def("remove_process_set", &agree_on<Kind::kRemoveSet>, "process_set"_a)
      .def("process_set_ranks", &Engine::ranks_of, "process_set"_a)
      .def("allocate_shared", &allocate, "nbytes"_a, "device"_a = kCpu)
      .def("release_shared", &agree_on<Kind::kRelease>, "region"_a)
      .def("shared_memory", &shared_memory, "region"_a);
}

}  // namespace

void define_engine(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  Class engine(module, "Engine", py::is_final());
  engine.def(py::init(&start), "rank"_a, "size"_a, "exchange"_a, "options"_a = Table{})
      .def_property_readonly("rank", topology_field<&Topology::rank>())
      .def_property_readonly("size", topology_field<&Topology::size>())
      .def_property_readonly("local_rank", topology_field<&Topology::local_rank>())
      .def_property_readonly("local_size", topology_field<&Topology::local_size>())
      .def_property_readonly("cross_rank", topology_field<&Topology::cross_rank>())
      .def_property_readonly("cross_size", topology_field<&Topology::cross_size>())
      .def_property_readonly("is_homogeneous", topology_field<&Topology::homogeneous>())
      .def("transport_to", &transport_to, "peer"_a)
      .def("make_current", &make_current, "current"_a = true)
      .def("start_timeline", &start_timeline, "path"_a, "mark_cycles"_a = false,
           "goes_on"_a = false)
      .def("stop_timeline", &Engine::stop_timeline, unlocked)
      .def("device_trouble", &device_trouble, "device"_a)
      .def("poll", &poll, "handle"_a)
      .def("wait", &wait, "handle"_a, "timeout_s"_a = -1.0)
      .def("abort", &Engine::abort, "message"_a, unlocked)
      .def("park", &Engine::park, "parked"_a, unlocked)
      .def("blocked", &blocked, "at"_a, "waits"_a, "may_request"_a, "run"_a = 0, "place"_a = "")
      .def("resumed", &resumed, unlocked)
      .def("aborted", &aborted)
      .def("pending", &pending)
      .def("counters", &counters)
      .def("trace", &trace, "cursor"_a)
      .def("shutdown", &Engine::shutdown, unlocked);
  define_collectives(engine);
}

}  // namespace hvd::python
