// Networks that are trained: their gradients' bytes, and what a step costs one device alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::sim {

// In the order in which backward makes them.
std::vector<std::int64_t> resnet50();

struct Network {
  std::string name;
  std::vector<std::int64_t> tensors;
  double step = 0;  // ns: batch 64 on a P100, of which two thirds are the backward pass
  double backward() const { return step * 2 / 3; }
};

// Those of Horovod's own figures
// (https://horovod.readthedocs.io/en/stable/benchmarks_include.html), and ResNet-50. Images a
// second of one P100, synthetic data: TensorFlow's benchmarks of May 2017 (Inception V3 142,
// ResNet-50 219, VGG-16 154); ResNet-101 lies between ResNet-50 and ResNet-152 (91.8), by their
// operations.
std::vector<Network> networks();

}  // namespace hvd::sim
