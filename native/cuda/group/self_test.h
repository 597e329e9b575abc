// Self-test of a backend between devices before it is used: that its results are right
// and come in time. Drivers, topologies and virtual machines differ more than they say: what the
// peer info allow may still hang, or give wrong numbers. A backend that fails is not taken, the
// next one is.
//   algorithm  one of several by which a backend can do the same
//             (DeviceBackend::algorithms()); the one whose slowest member was fastest is taken
//   lap       one operation on known numbers: a few sums by each algorithm, then
//             one of each other collective
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "cuda/device/device.h"
#include "cuda/group/bootstrap_group.h"
#include "cuda/group/device_backend.h"

namespace hvd::cuda {

// How long a lap took on the device, from one event with timing to the other.
using LapSeconds = std::function<Result<double>(const Device& device, const Device::Event& begun,
                                                const Device::Event& done)>;
Result<double> seconds_of_lap(const Device& device, const Device::Event& begun,
                              const Device::Event& done);

// Collective: the same outcome on all members, unless the mesh's abort came. Waits for the device,
// a lap at most bootstrap.self_test_seconds (NCCL connects in its first one). Gives how long
// a sum takes, in seconds on the slowest member; 0: nothing was tried, for a member captures a
// graph.
Result<double> run_self_test(DeviceBackend& backend, const BootstrapGroup& bootstrap,
                             const LapSeconds& seconds_of = seconds_of_lap);

// The collectives as a self-test has them carried out: on known numbers, so that what
// comes out is known too. Small whole numbers: their sums are exact in any order.
//   share   the part of the numbers that is one member's: count / members of them

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
