#include "python/errors_py.h"

#include <pybind11/pybind11.h>

#include <array>

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
