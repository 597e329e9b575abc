// Pinned host memory in two alternating halves, and the copies to and from it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "base/abort.h"
#include "base/deadline.h"
#include "base/status.h"
#include "cuda/device/device.h"

namespace hvd::cuda {

// Wait for the device; returns the abort's cause or kTimeout.
Status wait_for(Device& device, CUevent event, const Abort& abort,
                const Deadline& deadline = Deadline::never());
// The same, for the work enqueued on `stream` so far.
Status wait_for_stream(Device& device, CUstream stream, const Abort& abort);

class Pinned {
 public:
  Pinned(std::shared_ptr<Device> device, const Abort& abort);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  // Grow the memory if needed. Its contents are lost.
  Status grow(std::size_t half_bytes);
  std::byte* half(std::size_t number) const { return memory_ + number % 2 * half_bytes_; }

 private:
  void release();

  std::shared_ptr<Device> device_;
  const Abort& abort_;
  std::byte* memory_ = nullptr;
  std::size_t half_bytes_ = 0;
};

// Copies in stream order; copies that are contiguous on both sides are merged.
class Copies {
 public:
  explicit Copies(const Device& device) : device_(device) {}

  void add(void* to, const void* from, std::size_t bytes);
  // Enqueue the rest; returns the first error.
  Status finish();

 private:
  void enqueue();

  const Device& device_;
  Status status_;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace hvd::cuda
