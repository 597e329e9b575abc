// Attributes of a TensorFlow node: what it says of its operation, and the operation's name on the
// wire.
#pragma once

#include <cstdint>
#include <string>

#include "c_api/hvd_core.h"
#include "tf/foreign.h"

namespace hvd::tf {

// The defaults where the op has no such attribute.
struct Attributes {
  explicit Attributes(TF_OpKernelConstruction* construction);
  std::string name;
  std::int32_t op = HVD_SUM, root = 0, set = 0;
  double prescale = 1.0, postscale = 1.0;
};

// A node's name as ranks know it: see call.h.
std::string wire_name(const std::string& node, bool last_part_only);

}  // namespace hvd::tf
