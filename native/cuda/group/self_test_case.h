// The collectives as a self-test has them carried out (self_test.h): on known numbers, so that what
// comes out is known too. Small whole numbers: their sums are exact in any order.
//   share   the part of the numbers that is one member's: count / members of them
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// Of one member, on its device: `count` floats each, a multiple of the members.
struct Numbers {
  void* in = nullptr;   // number_of(own group rank, i)
  void* out = nullptr;  // zeros, before the first lap
  std::size_t count = 0;
};

float number_of(std::size_t group_rank, std::size_t i);

struct SelfTestCase {
  const char* what;
  // Larger groups skip it until it is needed, because it connects every pair.
  int most_members;
  Status (*enqueue)(DeviceBackend& backend, const Group& group, const Numbers& numbers);
  // What is at out[i] then.
  float (*result)(const Group& group, std::size_t count, std::size_t i);
};

// Of each collective one; the first is the sum.
const std::vector<SelfTestCase>& self_test_cases();

}  // namespace hvd::cuda
