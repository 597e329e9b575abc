// Cache of allreduce requests for fast_call.cc, by name, types, shapes and reduction, so that
// repeated calls need not build them.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/engine.h"
#include "engine/message/request.h"
#include "python/fast_tensor.h"

namespace hvd::python {

struct Signature {
  int op = 0;
  double prescale = 1.0, postscale = 1.0;
  bool grouped = false;  // several tensors under a group's name

  bool operator==(const Signature& other) const {
    return op == other.op && prescale == other.prescale && postscale == other.postscale &&
           grouped == other.grouped;
  }
};

// Parse Python's average, op, prescale and postscale. False: unusual types.
bool read_how(PyObject* average, PyObject* op, PyObject* before, PyObject* after, Signature& how);
// True if the ordinary path would not refuse it.
bool is_usual(Dtype dtype, int op);

struct KeptRequest {
  pybind11::object name;
  Signature how;
  Request request;

  // The engine's persistent request; nullptr: not supported.
  std::shared_ptr<PersistentRequest> persistent(const Engine& engine);

 private:
  std::uint64_t engine_ = 0;  // serial of its engine
  std::shared_ptr<PersistentRequest> persistent_;
};

class FastRequests {
 public:
  // name: a str or None. nullptr, without an error: another type.
  KeptRequest* find(PyObject* name, const Signature& how, const Views& tensors);

 private:
  static bool same(const KeptRequest& kept, PyObject* name, const Signature& how,
                   const Views& tensors);

  static constexpr std::size_t kMost = 1024;  // newer requests evict older ones
  std::array<KeptRequest, kMost> kept_{};
};

}  // namespace hvd::python
