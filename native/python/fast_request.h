// The request of an allreduce as Python's arguments say it, for fast_call.cc: kept by name, types,
// shapes and reduction, so that the next call of the same need not make it.
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
  bool grouped = false;  // several tensors, under a name of groups

  bool operator==(const Signature& other) const {
    return op == other.op && prescale == other.prescale && postscale == other.postscale &&
           grouped == other.grouped;
  }
};

// From Python's average, op, prescale and postscale. False: not of the usual types.
bool read_how(PyObject* average, PyObject* op, PyObject* before, PyObject* after, Signature& how);
// Nothing that the ordinary way would refuse.
bool is_usual(Dtype dtype, int op);

struct KeptRequest {
  pybind11::object name;
  Signature how;
  Request request;

  // What the engine can run at once; null: nothing.
  std::shared_ptr<PersistentRequest> persistent(const Engine& engine);

 private:
  std::uint64_t engine_ = 0;  // its serial, whose this is
  std::shared_ptr<PersistentRequest> persistent_;
};

class FastRequests {
 public:
  // name: a str or None. Null, without an error: a name that is no text.
  KeptRequest* find(PyObject* name, const Signature& how, const Views& tensors);

 private:
  static bool same(const KeptRequest& kept, PyObject* name, const Signature& how,
                   const Views& tensors);

  static constexpr std::size_t kMost = 1024;  // a newer takes an older one's place
  std::array<KeptRequest, kMost> kept_{};
};

}  // namespace hvd::python
