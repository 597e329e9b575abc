// NCCL's types and reductions for ours.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/nccl/nccl.h"
#include "tensor/dtype.h"

namespace hvd::cuda {

struct NcclKind {
  NcclType type;
  NcclOp op;
  std::size_t parts;  // NCCL's elements in one of ours
};

// nullopt: not supported. bool is bytes of 0 and 1, for which "or" is the maximum and "and" the
// minimum; complex numbers are added component by component.
std::optional<NcclKind> nccl_kind(Dtype dtype, ReduceOp op);

}  // namespace hvd::cuda
