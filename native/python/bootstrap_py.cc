#include "python/bootstrap_py.h"

#include <pybind11/stl.h>

#include <map>

#include "engine/options.h"
#include "python/module.h"
#include "transport/bootstrap/tcp_bootstrap.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

// Keeps the bootstrap until close().
struct PyTcpBootstrap {
  std::unique_ptr<TcpBootstrap> bootstrap;
};

PyTcpBootstrap connect(int rank, int size, const std::string& host, std::uint16_t port,
                       double timeout_s, const std::string& secret,
                       const std::map<int, int>& pidfds) {
  std::vector<Acquaintance> known;
  known.reserve(pidfds.size());
  for (const auto& [other, pidfd] : pidfds) known.push_back({other, pidfd});
  auto bootstrap = [&] {
    const py::gil_scoped_release unlocked;
    return TcpBootstrap::connect(rank, size, host, port, timeout_s, secret, std::move(known));
  }();
  return {value_or_raise(std::move(bootstrap))};
}

py::list exchange(PyTcpBootstrap& self, const std::string& mine) {
  if (self.bootstrap == nullptr) throw py::value_error("this TcpBootstrap is closed");
  auto all = [&] {
    const py::gil_scoped_release unlocked;
    return self.bootstrap->allgather(mine);
  }();
  py::list list;
  for (const std::string& text : value_or_raise(std::move(all))) list.append(py::bytes(text));
  return list;
}

}  // namespace

Result<std::vector<std::string>> CallableBootstrap::allgather(const std::string& mine) {
  const py::gil_scoped_acquire locked;
  try {
    return exchange_(py::bytes(mine)).cast<std::vector<std::string>>();
  } catch (...) {
    error_ = std::current_exception();
    return Status::make(Code::kUnavailable, "the exchange failed", "python/bootstrap_py");
  }
}

Bootstrap* tcp_bootstrap_of(const py::object& exchange) {
  if (!py::isinstance<PyTcpBootstrap>(exchange)) return nullptr;
  return exchange.cast<PyTcpBootstrap&>().bootstrap.get();
}

std::unique_ptr<Mesh> LocalHub::take(int rank, int size) {
  const MutexLock lock(mutex_);
  if (static_cast<std::size_t>(size) != meshes_.size()) {
    throw py::value_error("the hub has " + std::to_string(meshes_.size()) + " ranks");
  }
  if (rank >= 0 && rank < size && meshes_[static_cast<std::size_t>(rank)] != nullptr) {
    return std::move(meshes_[static_cast<std::size_t>(rank)]);
  }
  throw py::value_error("rank " + std::to_string(rank) + " is taken or does not exist");
}

void define_bootstraps(py::module_& module) {
  using namespace py::literals;
  using Table = std::map<std::string, std::string>;
  py::class_<PyTcpBootstrap>(module, "TcpBootstrap", py::is_final())
      .def(py::init(&connect), "rank"_a, "size"_a, "host"_a, "port"_a, "timeout_s"_a = 30.0,
           "secret"_a = "", "pidfds"_a = std::map<int, int>{})
      .def("__call__", &exchange, "mine"_a, py::pos_only())
      .def("close", [](PyTcpBootstrap& self) { self.bootstrap.reset(); });
  py::class_<LocalHub>(module, "LocalHub", py::is_final())
      .def(py::init([](int size, const Table& options) {
             if (size < 1) throw py::value_error("size must be at least 1");
             return std::make_unique<LocalHub>(size, value_or_raise(parse_options(options)).mesh);
           }),
           "size"_a, "options"_a = Table{});
}

}  // namespace hvd::python
