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

// Calls Python; keeps its exception, if any, so that it can be raised unchanged.
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

// The native object of Python's TcpBootstrap, which needs no Python; nullptr for other objects.
Bootstrap* tcp_bootstrap_of(const pybind11::object& exchange);

// The meshes of n ranks of this process; each can be taken once.
class LocalHub {
 public:
  LocalHub(int size, const MeshOptions& options) : meshes_(make_local_meshes(size, options)) {}
  std::unique_ptr<Mesh> take(int rank, int size);

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

}  // namespace hvd::python
