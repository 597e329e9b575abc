// The reductions. The numbers are Horovod's, the wire's and Python's: append, never renumber.
#pragma once

#include <cstdint>

namespace hvd {

enum class ReduceOp : std::uint8_t {
  kAverage = 0,  // a sum, divided by the number of ranks
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5
};
constexpr int kReduceOpCount = 6;

const char* name_of(ReduceOp op);  // "Average", as in hvd.Average

}  // namespace hvd
