// What one rank's own call can do wrong.
#include <doctest/doctest.h>

#include <limits>

#include "engine/controller/world.h"
#include "engine/message/request.h"

namespace hvd::test {
namespace {

Status checked(const Request& request, const std::vector<int>& members = {0, 2, 5}) {
  static const float memory = 0;
  std::vector<Operand> operands;
  for (const TensorMeta& tensor : request.tensors) {
    operands.push_back({&memory, nullptr, static_cast<std::size_t>(tensor.count())});
  }
  return validate(request, operands, 2, 6, members);
}

std::string refused(const Request& request, const std::vector<int>& members = {0, 2, 5}) {
  const Status status = checked(request, members);
  CHECK(status.code == Code::kInvalidArgument);
  return status.message;
}

}  // namespace

TEST_CASE("validate: sets that do not exist or have other members") {
  CHECK(refused(sum_of("x"), {0, 1}) ==
        "Allreduce: Rank 2 is not a member of the provided process set.");
  CHECK(refused(of_kind(Kind::kReducescatter, "x", {1}), {0}) ==
        "Reducescatter: Rank 2 is not a member of the provided process set.");
  CHECK(refused(about(Kind::kBarrier, "x"), {}) ==
        "Barrier: Process set provided does not exist, or has not been registered.");
  CHECK(refused(in_set(about(Kind::kJoin, "x"), 1)).find("Join: only of all ranks") == 0);
}

TEST_CASE("validate: broadcast's root is a rank of the set") {
  Request request = of_kind(Kind::kBroadcast, "x", {1});
  for (const int root : {0, 2, 5}) {
    request.root = root;
    CHECK(checked(request).is_ok());
  }
  for (const int root : {-1, 1, 6, 99}) {
    request.root = root;
    CHECK(refused(request) == "broadcast received invalid root rank " + std::to_string(root) +
                                  " for provided process set");
  }
}

TEST_CASE("validate: alltoall's splits") {
  Request request = of_kind(Kind::kAlltoall, "x", {6, 2});
  request.sizes = {1, 2, 3};
  CHECK(checked(request).is_ok());
  request.sizes = {0, 0, 1};  // the rest is dropped
  CHECK(checked(request).is_ok());
  request.sizes = {3, 3};
  CHECK(refused(request) == "Number of entries in splits does not equal number of workers.");
  request.sizes = {3, 3, 1};
  CHECK(refused(request) == "Sum of splits entries is greater than the first dimension of tensor.");
  request.sizes = {std::numeric_limits<std::int64_t>::max(), 1, 1};
  CHECK(refused(request) == "Sum of splits entries is greater than the first dimension of tensor.");
  request.sizes = {1, -1, 1};
  CHECK_FALSE(checked(request).is_ok());
}

TEST_CASE("validate: reducescatter takes Horovod's operators, and no scalars") {
  Request request = of_kind(Kind::kReducescatter, "x", {6});
  CHECK(checked(request).is_ok());
  request.op = ReduceOp::kMax;
  CHECK(checked(request).code == Code::kUnavailable);  // HorovodInternalError
  CHECK(checked(request).message == "Reducescatter currently only supports AVERAGE and SUM.");
  request.op = ReduceOp::kAverage;
  request.tensors[0].shape = {};
  CHECK(refused(request) == "Reducescatter does not support scalar inputs");
}

TEST_CASE("validate: every operator with the dtypes it has") {
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      Request request = sum_of("x", {1}, static_cast<Dtype>(dtype));
      request.op = static_cast<ReduceOp>(op);
      CHECK(checked(request).is_ok() == can_reduce(static_cast<Dtype>(dtype), request.op));
    }
  }
  const auto refusal = [](Dtype dtype, ReduceOp op) {
    Request request = sum_of("x", {1}, dtype);
    request.op = op;
    return refused(request);
  };
  CHECK(refusal(Dtype::kUint32, ReduceOp::kSum) ==
        "allreduce of uint32 with op Sum is not available (x): cast it to int64");
  CHECK(refusal(Dtype::kComplex64, ReduceOp::kMax) ==
        "allreduce of complex64 with op Max is not available (x): reduce its real and imaginary "
        "parts");
  CHECK(refusal(Dtype::kFloat8E4m3, ReduceOp::kAverage) ==
        "allreduce of float8_e4m3fn with op Average is not available (x): cast it to float32");
  Request request = sum_of("x");
  request.postscale = std::numeric_limits<double>::infinity();
  CHECK(refused(request) == "the prescale and postscale factors of x must be finite");
}

TEST_CASE("validate: invalid shapes, empty groups and null pointers") {
  CHECK_FALSE(checked(sum_of("x", {-1})).is_ok());
  CHECK_FALSE(checked(sum_of("x", {std::int64_t{1} << 32, std::int64_t{1} << 32})).is_ok());
  CHECK(checked(sum_of("x", {0, 5})).is_ok());
  CHECK(refused(of_kind(Kind::kAllgather, "x", {})).find("at least one dimension") !=
        std::string::npos);
  Request none = sum_of("x");
  none.tensors.clear();
  CHECK(refused(none) == "x: a group of no tensors");
  CHECK(validate(sum_of("x"), {Operand{nullptr, nullptr, 4}}, 0, 1, {0}).message ==
        "tensor x is not empty, but its pointer is null");
}

TEST_CASE("validate: new sets have ranks that exist, each once") {
  const auto add = [](std::vector<std::int64_t> ranks) {
    return about(Kind::kAddSet, "add", std::move(ranks));
  };
  CHECK(checked(add({3, 1})).is_ok());
  CHECK(refused(add({})) == "a process set needs at least one rank");
  CHECK(refused(add({0, 77})).find("Tried to register process set with invalid rank: [0, 77]") ==
        0);
  CHECK(refused(add({-1, 0})).find("invalid rank") != std::string::npos);
  CHECK(refused(add({1, 2, 1})) == "a process set names every rank once at most: [1, 2, 1]");
}

}  // namespace hvd::test
