#include "collective/select.h"

#include <string>

#include "collective/cpu_backend.h"

namespace hvd {

Backends::Backends(Mesh& mesh) : cpu_(std::make_unique<CpuBackend>(mesh)) {}

Result<Backend*> Backends::select(int device) const {
  if (device == kCpu) return cpu_.get();
  return Status::make(Code::kInvalidArgument,
                      "this build reduces host memory only, not device " + std::to_string(device) +
                          "; copy the tensor to the host first",
                      "collective/select");
}

}  // namespace hvd
