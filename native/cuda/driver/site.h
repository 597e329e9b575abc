// Call site of this thread's driver calls, for messages: "rank 2, device 0 (NVIDIA H200)".
#pragma once

#include <string>

namespace hvd::cuda {

struct Site {
  std::string name;
  int rank = -1;
};

// Of this thread; nullptr: no particular device. Set by Current (device.h), read by Driver::check.
const Site* current_site();
void set_current_site(const Site* site);

}  // namespace hvd::cuda
