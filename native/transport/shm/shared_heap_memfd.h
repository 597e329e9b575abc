// The shared heap as one sparse memfd without a name, so nothing can be left behind. A claim is a
// fallocate, which fails if writing to a hole would be a SIGBUS.
#pragma once

#include <memory>

#include "base/fd.h"
#include "transport/shm/shared_heap.h"

namespace hvd {

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
