#include "engine/validate.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace hvd {
namespace {

Status refuse(const std::string& message) {
  return Status::make(Code::kInvalidArgument, message, "engine/validate");
}

// Extents are not negative and their product fits.
bool countable(const TensorMeta& tensor) {
  const auto most = std::numeric_limits<std::int64_t>::max() / 16;
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || (extent > 0 && count > most / extent)) return false;
    count *= extent;
  }
  return tensor.shape.size() <= 255;
}

Status check_tensor(const TensorMeta& tensor, const Operand& operand, const std::string& name) {
  if (!countable(tensor)) {
    return refuse("tensor " + name + " has the shape " + shape_text(tensor.shape) +
                  ", which is not one that memory can hold");
  }
  if (operand.count > 0 && operand.in == nullptr) {
    return refuse("tensor " + name + " is not empty, but its pointer is null");
  }
  return Status::ok();
}

Status check_allreduce(const Request& request) {
  static constexpr std::array<const char*, kReduceOpCount> kOps{"Average", "Sum", "Adasum",
                                                                "Min",     "Max", "Product"};
  if (request.op != ReduceOp::kAverage && request.op != ReduceOp::kSum) {
    return refuse(std::string("allreduce with op ") + kOps[static_cast<std::size_t>(request.op)] +
                  " is not available; use Sum or Average");
  }
  for (const TensorMeta& tensor : request.tensors) {
    if (!can_reduce(tensor.dtype)) {
      return refuse(std::string("allreduce of ") + name_of(tensor.dtype) +
                    " is not available; convert " + request.name +
                    " to uint8, int32, int64, float16, bfloat16, float32 or float64");
    }
  }
  if (std::isfinite(request.prescale) && std::isfinite(request.postscale)) return Status::ok();
  return refuse("the prescale and postscale factors of " + request.name + " must be finite");
}

Status check_kind(const Request& request, int size) {
  switch (request.kind) {
    case Kind::kAllreduce:
      return check_allreduce(request);
    case Kind::kBroadcast:
      if (request.root >= 0 && request.root < size) return Status::ok();
      return refuse("broadcast received invalid root rank " + std::to_string(request.root) +
                    " for provided process set");
    case Kind::kAllgather:
      if (!request.tensors.front().shape.empty()) return Status::ok();
      return refuse("allgather of " + request.name +
                    " needs a tensor of at least one dimension; reshape it to [1]");
    case Kind::kBarrier:
    case Kind::kLeave:
      return Status::ok();
  }
  return Status::ok();
}

}  // namespace

Status validate(const Request& request, const std::vector<Operand>& operands, int size) {
  if (request.kind != Kind::kBarrier && request.tensors.empty()) {
    return refuse(request.name + ": a group of no tensors");
  }
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    if (Status status = check_tensor(request.tensors[i], operands[i], request.name); !status) {
      return status;
    }
  }
  return check_kind(request, size);
}

}  // namespace hvd
