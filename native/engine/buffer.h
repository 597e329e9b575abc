// Memory that the core owns: results whose size only the ranks together know, and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/failpoint.h"
#include "tensor/dtype.h"

namespace hvd {

// A place that asks for memory, for tests.
inline void may_lack_memory() {
  if (failpoint("engine.alloc")) throw std::bad_alloc();
}

struct Buffer {
  Dtype dtype = Dtype::kUint8;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;

  // 64-byte aligned, never null; false: there is not that much memory.
  bool allocate() {
    if (failpoint("engine.alloc")) return false;
    data_.reset(new (std::align_val_t{64}, std::nothrow) std::byte[bytes + 1]);  // NOLINT: owned
    return data_ != nullptr;
  }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace hvd
