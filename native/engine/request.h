// Words.
//   request    what one rank asks for: "I have tensor x of this shape, to be summed". Goes to rank
//   0. response   what rank 0 tells every rank to do next, once all ranks have asked: carry out
//   these names together, or fail them. group      a request of several tensors: they are one
//   operation under one name, so it is all or nothing by construction.
// All ranks carry out the same responses in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace hvd {

// The numbers are the wire's: append, never renumber.
enum class Kind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kLeave = 4
};
constexpr int kKindCount = 5;

// The numbers are Horovod's and Python's.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5
};
constexpr int kReduceOpCount = 6;

const char* name_of(Kind kind);        // "ALLREDUCE", as in Horovod's messages and timeline
const char* lower_name_of(Kind kind);  // "allreduce", as in names of tensors

struct TensorMeta {
  Dtype dtype = Dtype::kFloat32;
  int device = kCpu;
  std::vector<std::int64_t> shape;

  std::int64_t count() const;
  std::int64_t bytes() const { return count() * static_cast<std::int64_t>(size_of(dtype)); }
};

struct Request {
  Kind kind = Kind::kBarrier;
  std::string name;
  std::vector<TensorMeta> tensors;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;

  std::int64_t bytes() const;
};

struct Response {
  Kind kind = Kind::kBarrier;
  Status status;                   // not ok: the named requests fail with it
  std::vector<std::string> names;  // one operation together, in this order
  std::vector<std::int64_t> rows;  // allgather: dimension 0 of every rank
  int rank = -1;                   // leave: who leaves
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[2, 3]"

// Horovod's sentence, with the rank that it never names.
Status shut_down_by(int rank);

}  // namespace hvd
