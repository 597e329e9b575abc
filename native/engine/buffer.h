// Memory that the core owns: results whose size only the ranks together know (allgather).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tensor/dtype.h"

namespace hvd {

struct Buffer {
  Dtype dtype = Dtype::kUint8;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;

  // 64-byte aligned, never null; false: there is not that much memory.
  bool allocate() {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64)));
    return data_ != nullptr;
  }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace hvd
