// A tensor is five words: pointer, count, dtype, device, stream. The core knows no
// framework.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace hvd {

constexpr int kCpu = -1;  // device: kCpu, or the ordinal of an accelerator

struct View {
  void* data = nullptr;
  std::int64_t count = 0;  // elements
  Dtype dtype = Dtype::kFloat32;
  int device = kCpu;
  void* stream = nullptr;
  std::int64_t bytes() const { return count * static_cast<std::int64_t>(size_of(dtype)); }
};

}  // namespace hvd
