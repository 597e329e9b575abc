// A range of memory that all ranks of one host see, reserved once and filled with pages on demand.
// It is address space only until somebody claims a part; what is claimed and released is agreed on
// elsewhere (engine/execution/regions.h), alike on every rank of the host.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace hvd {

class SharedHeap {
 public:
  virtual ~SharedHeap() = default;
  virtual std::byte* base() const = 0;    // differs from process to process
  virtual std::size_t bytes() const = 0;  // reserved
  // Whole pages, zeroed. kUnavailable when the machine (or a container's limit) has no more: never
  // a SIGBUS later. One rank of the host claims for all.
  virtual Status claim(std::size_t offset, std::size_t bytes) = 0;
  virtual void release(std::size_t offset, std::size_t bytes) = 0;
};

}  // namespace hvd
