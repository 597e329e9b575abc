// The extension hvd_kernel._native; its types are in hvd_kernel/_native.pyi.
#include "python/module.h"

#include "base/c_stack.h"
#include "c_api/hvd_core.h"
#include "engine/message/request.h"
#include "python/errors_py.h"

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
