// Memory that the core owns: results whose size depends on all ranks, and scratch.
//   placement  where memory is allocated: on the host, or on the device of the current operation
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/failpoint.h"
#include "base/status.h"
#include "collective/accelerator.h"
#include "tensor/dtype.h"

namespace hvd {

// Marks an allocation, for tests.
inline void may_lack_memory() {
  if (failpoint("engine.alloc")) throw std::bad_alloc();
}

struct Placement {
  Accelerator* accelerator = nullptr;  // nullptr: the host
  int device = kCpu;
};

struct Buffer {
  Dtype dtype = Dtype::kUint8;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;
  int device = kCpu;

  // 64-byte aligned, never null. kUnavailable: not enough memory.
  Status allocate(const Placement& placement = {}) {
    if (failpoint("engine.alloc")) return lacking();
    return placement.accelerator == nullptr ? allocate_here() : allocate_on(placement);
  }
  // Adopt device memory that was allocated elsewhere.
  void adopt(std::shared_ptr<void> memory, std::size_t length, int on_device) {
    on_device_ = std::move(memory);
    shape = {static_cast<std::int64_t>(length)};
    bytes = length;
    device = on_device;
  }
  std::byte* data() const {
    return on_device_ == nullptr ? data_.get() : static_cast<std::byte*>(on_device_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };
  static Status lacking() { return Status::make(Code::kUnavailable, "no memory", "engine/buffer"); }

  Status allocate_here() {
    data_.reset(new (std::align_val_t{64}, std::nothrow) std::byte[bytes + 1]);  // NOLINT: owned
    return data_ == nullptr ? lacking() : Status::ok();
  }
  Status allocate_on(const Placement& placement) {
    Result<std::shared_ptr<void>> memory =
        placement.accelerator->allocate(placement.device, bytes > 0 ? bytes : 1);
    if (!memory) return memory.status();
    on_device_ = memory.take();
    device = placement.device;
    return Status::ok();
  }

  std::unique_ptr<std::byte[], Free> data_;
  std::shared_ptr<void> on_device_;  // freed in stream order, even after the engine's end
};

}  // namespace hvd
