// What carries an operation out on the tensors of one kind of device. The engine asks select() for
// it and knows no algorithm. Every call is collective and comes from the coordinator thread; all
// ranks make the same calls in the same order.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/plan.h"
#include "tensor/dtype.h"
#include "tensor/reduce.h"

namespace hvd {

class Backend {
 public:
  virtual ~Backend() = default;
  // Several operands are one operation: fused.
  virtual Status allreduce(const std::vector<Operand>& operands, Dtype dtype,
                           const Scaling& scaling) = 0;
  // Operands in bytes. At the root `in` is sent, and copied to `out` unless they are the same.
  virtual Status broadcast(const std::vector<Operand>& operands, int root) = 0;
  // blocks[r]: the bytes of rank r; only this rank's own block has an `in`.
  virtual Status allgather(const std::vector<Operand>& blocks) = 0;
};

}  // namespace hvd
