// Memory shared by all ranks of one host, reserved once and backed by pages on demand. It is only
// address space until a rank claims a part. Claims and releases are decided elsewhere
// (engine/execution/regions.h), the same on every rank of the host.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace hvd {

class SharedHeap {
 public:
  virtual ~SharedHeap() = default;
  virtual std::byte* base() const = 0;    // differs from process to process
  virtual std::size_t bytes() const = 0;  // reserved
  // Whole pages, zeroed. kUnavailable if the machine (or a container's limit) has no more memory:
  // never a SIGBUS later. One rank of the host claims for all.
  virtual Status claim(std::size_t offset, std::size_t bytes) = 0;
  virtual void release(std::size_t offset, std::size_t bytes) = 0;
};

}  // namespace hvd
