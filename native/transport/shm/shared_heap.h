// Shared heap: memory shared by all ranks of one host, reserved once and backed by pages on demand.
// It is only address space until a rank claims a part. Claims and releases are decided elsewhere
// (engine/execution/regions.h), the same on every rank of the host.
#pragma once

#include <cstddef>
#include <memory>

#include "base/fd.h"
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

// The shared heap as one sparse memfd without a name, so nothing can be left behind. A claim is a
// fallocate, which fails if writing to a hole would be a SIGBUS.

// 0: as much as the machine's memory; whole pages otherwise.
std::size_t heap_bytes_or_all(std::size_t wanted);

class MemfdHeap : public SharedHeap {
 public:
  static Result<std::shared_ptr<MemfdHeap>> create(std::size_t bytes);  // one rank of the host
  static Result<std::shared_ptr<MemfdHeap>> attach(Fd memory);          // the other ranks
  ~MemfdHeap() override;
  MemfdHeap(const MemfdHeap&) = delete;
  MemfdHeap& operator=(const MemfdHeap&) = delete;

  const Fd& fd() const { return memory_; }
  std::byte* base() const override { return base_; }
  std::size_t bytes() const override { return bytes_; }
  Status claim(std::size_t offset, std::size_t bytes) override;
  void release(std::size_t offset, std::size_t bytes) override;

 private:
  MemfdHeap(Fd memory, std::byte* base, std::size_t bytes)
      : memory_(std::move(memory)), base_(base), bytes_(bytes) {}
  static Result<std::shared_ptr<MemfdHeap>> map(Fd memory, std::size_t bytes);

  Fd memory_;
  std::byte* base_;
  std::size_t bytes_;
};

}  // namespace hvd
