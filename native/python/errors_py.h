// The only place where a Status becomes an exception: one class of hvd_kernel.errors per code.
#pragma once

#include "base/status.h"

namespace hvd::python {

[[noreturn]] void raise(const Status& status);

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.status());
  return result.take();
}

}  // namespace hvd::python
