// The extension hvd_kernel._native, whose types are in hvd_kernel/_native.pyi, and its exceptions.
#include "python/module.h"

#include <pybind11/pybind11.h>

#include <array>

#include "base/c_stack.h"
#include "c_api/hvd_core.h"
#include "engine/message/request.h"

namespace py = pybind11;

namespace hvd::python {
namespace {

constexpr const char* kBase = "HorovodInternalError";
// One class per Code, in order; a rank's own invalid argument is Python's ValueError.
constexpr std::array<const char*, kCodeCount> kClasses{
    "",           "",    "Mismatch", "RankFailed",  "RankDied",   kBase,
    "HvdTimeout", kBase, kBase,      "RankStalled", "OutOfMemory"};

}  // namespace

void raise(const Status& status) {
  if (status.code == Code::kInvalidArgument) throw py::value_error(status.message);
  const bool ours = status.code == Code::kInternal || status.code == Code::kUnavailable;
  const py::object type = py::module_::import("hvd_kernel.errors")
                              .attr(kClasses[static_cast<std::size_t>(status.code)]);
  const py::object error =
      type(status.message + (ours ? " [" + status.where + "]" : ""), status.rank);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

}  // namespace hvd::python

PYBIND11_MODULE(_native, module) {
  const auto constant = [&](const char* name, hvd::ReduceOp op) {
    module.attr(name) = static_cast<int>(op);
  };
  constant("AVERAGE", hvd::ReduceOp::kAverage);
  constant("SUM", hvd::ReduceOp::kSum);
  constant("ADASUM", hvd::ReduceOp::kAdasum);
  constant("MIN", hvd::ReduceOp::kMin);
  constant("MAX", hvd::ReduceOp::kMax);
  constant("PRODUCT", hvd::ReduceOp::kProduct);
  module.attr("__version__") = HVD_VERSION;
  hvd::python::define_outcome(module);
  hvd::python::define_bootstraps(module);
  hvd::python::define_engine(module);
  hvd::python::define_fast_calls(module);
  hvd::python::define_dlpack(module);
  module.def("write_c_stack_at", [](int signal, int descriptor) {
    if (const hvd::Status status = hvd::write_stack_at(signal, descriptor); !status) {
      hvd::python::raise(status);
    }
  });
  module.def("core_table", [] { return reinterpret_cast<std::uintptr_t>(hvd_core_table()); });
}
