#include "python/errors_py.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace hvd::python {
namespace {

const char* class_of(Code code) {
  switch (code) {
    case Code::kMismatch:
      return "Mismatch";
    case Code::kAborted:
      return "RankFailed";
    case Code::kRankDied:
      return "RankDied";
    case Code::kTimeout:
      return "HvdTimeout";
    default:
      return "HorovodInternalError";
  }
}

}  // namespace

void raise(const Status& status) {
  if (status.code == Code::kInvalidArgument) throw py::value_error(status.message);
  const bool ours = status.code == Code::kInternal || status.code == Code::kUnavailable;
  const std::string message = ours ? status.message + " [" + status.where + "]" : status.message;
  const py::object type = py::module_::import("hvd_kernel.errors").attr(class_of(status.code));
  const py::object error = type(message, status.rank);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

}  // namespace hvd::python
