// NCCL's types and reductions for ours.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/nccl/nccl.h"
#include "tensor/dtype.h"
#include "tensor/op.h"

namespace hvd::cuda {

struct NcclKind {
  NcclType type;
  NcclOp op;
  std::size_t parts;  // NCCL's elements in one of ours
};

// Nothing: it cannot. bool is bytes of 0 and 1, of which "or" is the largest and "and" the
// smallest; a complex number is added part by part.
std::optional<NcclKind> nccl_kind(Dtype dtype, ReduceOp op);

}  // namespace hvd::cuda
