#include "cuda/nccl/nccl_kind.h"

namespace hvd::cuda {
namespace {

// The divisor of an average is applied after NCCL's sum.
std::optional<NcclOp> op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return NcclOp::kSum;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    case ReduceOp::kProduct:
      return NcclOp::kProduct;
    case ReduceOp::kAdasum:
      break;
  }
  return std::nullopt;
}

std::optional<NcclType> type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
      return NcclType::kUint8;
    case Dtype::kInt8:
      return NcclType::kInt8;
    case Dtype::kInt32:
      return NcclType::kInt32;
    case Dtype::kInt64:
      return NcclType::kInt64;
    case Dtype::kFloat16:
      return NcclType::kFloat16;
    case Dtype::kFloat32:
      return NcclType::kFloat32;
    case Dtype::kFloat64:
      return NcclType::kFloat64;
    case Dtype::kBfloat16:
      return NcclType::kBfloat16;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<NcclKind> nccl_kind(Dtype dtype, ReduceOp op) {
  if (!can_reduce(dtype, op)) return std::nullopt;
  const std::optional<NcclOp> nccl_op = op_of(op);
  if (!nccl_op) return std::nullopt;
  if (dtype == Dtype::kBool) {
    const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
    return NcclKind{NcclType::kUint8, any ? NcclOp::kMax : NcclOp::kMin, 1};
  }
  if (dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128) {
    if (*nccl_op != NcclOp::kSum) return std::nullopt;
    const bool wide = dtype == Dtype::kComplex128;
    return NcclKind{wide ? NcclType::kFloat64 : NcclType::kFloat32, NcclOp::kSum, 2};
  }
  const std::optional<NcclType> type = type_of(dtype);
  if (!type) return std::nullopt;
  return NcclKind{*type, *nccl_op, 1};
}

}  // namespace hvd::cuda
