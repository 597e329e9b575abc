// What TensorFlow's C API hands out.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fake_tensorflow/fake_tensorflow.h"
#include "tf/foreign.h"

struct TF_Status {
  int code = 0;
  std::string text;
};
struct TF_Tensor {
  fake_tensorflow::Tensor tensor;
};
struct TF_OpDefinitionBuilder {
  std::string name;
  fake_tensorflow::Op op;
};
struct TF_KernelBuilder {
  std::string device;
  std::set<std::string> on_host;
  hvd::tf::Create create;
  hvd::tf::Compute compute;
  hvd::tf::ComputeAsync compute_async;
  hvd::tf::Delete drop;
};
struct TF_OpKernelConstruction {
  std::string name;
  std::map<std::string, std::int64_t> attributes;
};
struct TF_OpKernelContext {
  std::vector<fake_tensorflow::Tensor> inputs, outputs;
  std::int64_t step = 0, turn = 0;
  bool lends = true;
  std::atomic<int> ended{0};
  TF_Status failure;
};
struct TF_ShapeHandle {
  std::vector<std::int64_t> shape;
};
struct TF_ShapeInferenceContext {
  std::vector<std::vector<std::int64_t>> inputs, outputs;
};

namespace fake_tensorflow {

const TF_KernelBuilder& kernel_of(const std::string& op);  // on the CPU

}  // namespace fake_tensorflow
