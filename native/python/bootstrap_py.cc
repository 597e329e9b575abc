#include "python/bootstrap_py.h"

#include <pybind11/stl.h>

#include <map>

#include "engine/options.h"
#include "python/errors_py.h"
#include "transport/tcp_bootstrap.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

py::list as_list_of_bytes(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) list.append(py::bytes(text));
  return list;
}

Status unusable(const std::string& message) {
  return Status::make(Code::kInvalidArgument, message, "python/bootstrap_py");
}

// Keeps the bootstrap until close(); calls leave the GIL to others.
class PyTcpBootstrap {
 public:
  PyTcpBootstrap(int rank, int size, const std::string& host, std::uint16_t port,
                 double timeout_s) {
    const py::gil_scoped_release unlocked;
    auto bootstrap = TcpBootstrap::connect(rank, size, host, port, timeout_s);
    status_ = bootstrap.status();
    if (bootstrap) bootstrap_ = bootstrap.take();
  }
  const Status& status() const { return status_; }
  py::list exchange(const py::bytes& mine) {
    if (bootstrap_ == nullptr) throw py::value_error("this TcpBootstrap is closed");
    const std::string text = mine;
    Result<std::vector<std::string>> all = [&] {
      const py::gil_scoped_release unlocked;
      return bootstrap_->allgather(text);
    }();
    return as_list_of_bytes(value_or_raise(std::move(all)));
  }
  void close() { bootstrap_.reset(); }

 private:
  Status status_;
  std::unique_ptr<TcpBootstrap> bootstrap_;
};

std::unique_ptr<PyTcpBootstrap> connect(int rank, int size, const std::string& host,
                                        std::uint16_t port, double timeout_s) {
  auto bootstrap = std::make_unique<PyTcpBootstrap>(rank, size, host, port, timeout_s);
  if (!bootstrap->status()) raise(bootstrap->status());
  return bootstrap;
}

}  // namespace

Result<std::vector<std::string>> CallableBootstrap::allgather(const std::string& mine) {
  const py::gil_scoped_acquire locked;
  try {
    return exchange_(py::bytes(mine)).cast<std::vector<std::string>>();
  } catch (...) {
    error_ = std::current_exception();
    return Status::make(Code::kUnavailable, "the exchange between the ranks failed",
                        "python/bootstrap_py");
  }
}

Result<std::unique_ptr<Mesh>> LocalHub::take(int rank, int size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<std::size_t>(size) != meshes_.size()) {
    return unusable("the hub has " + std::to_string(meshes_.size()) + " ranks, not " +
                    std::to_string(size));
  }
  if (rank < 0 || rank >= size || meshes_[static_cast<std::size_t>(rank)] == nullptr) {
    return unusable("rank " + std::to_string(rank) + " of the hub is taken or does not exist");
  }
  return std::move(meshes_[static_cast<std::size_t>(rank)]);
}

void define_bootstraps(py::module_& module) {
  using namespace py::literals;
  using Table = std::map<std::string, std::string>;
  py::class_<PyTcpBootstrap>(module, "TcpBootstrap", py::is_final())
      .def(py::init(&connect), "rank"_a, "size"_a, "host"_a, "port"_a, "timeout_s"_a = 30.0)
      .def("__call__", &PyTcpBootstrap::exchange, "mine"_a, py::pos_only())
      .def("close", &PyTcpBootstrap::close);
  py::class_<LocalHub>(module, "LocalHub", py::is_final())
      .def(py::init([](int size, const Table& options) {
             if (size < 1) throw py::value_error("size must be at least 1");
             return std::make_unique<LocalHub>(size, value_or_raise(parse_options(options)).mesh);
           }),
           "size"_a, "options"_a = Table{});
}

}  // namespace hvd::python
