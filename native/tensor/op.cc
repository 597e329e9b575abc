#include "tensor/op.h"

#include <array>
#include <cstddef>

namespace hvd {

const char* name_of(ReduceOp op) {
  constexpr std::array<const char*, kReduceOpCount> kNames{"Average", "Sum", "Adasum",
                                                           "Min",     "Max", "Product"};
  return kNames.at(static_cast<std::size_t>(op));
}

}  // namespace hvd
