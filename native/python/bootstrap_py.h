// Bootstrap of engines made in Python: any callable bytes -> list of bytes, a TCP port, or a
// hub of threads.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/mesh/mesh.h"

namespace hvd::python {

// Calls Python; its exception, if any, is kept so that it can be raised as it is.
class CallableBootstrap : public Bootstrap {
 public:
  explicit CallableBootstrap(pybind11::object exchange) : exchange_(std::move(exchange)) {}
  Result<std::vector<std::string>> allgather(const std::string& mine) override;
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  pybind11::object exchange_;
  std::exception_ptr error_;
};

// What is behind a TcpBootstrap of Python, which carries no Python at all; null for anything else.
Bootstrap* tcp_bootstrap_of(const pybind11::object& exchange);

// The meshes of n ranks of this process, each to be taken once.
class LocalHub {
 public:
  LocalHub(int size, const MeshOptions& options) : meshes_(make_local_meshes(size, options)) {}
  std::unique_ptr<Mesh> take(int rank, int size);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

}  // namespace hvd::python
