// The core's C table as kernels use it, and tensors and errors in the words of both sides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "c_api/hvd_core.h"
#include "tf/foreign.h"

namespace hvd::tf {

// The engine of this moment, counted; none between shutdown and init.
class Engine {
 public:
  Engine();
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  explicit operator bool() const { return engine_ != nullptr; }
  hvd_engine* get() const { return engine_; }

 private:
  hvd_engine* engine_;
};

void set_core(const hvd_core* table);
const hvd_core* core();  // nullptr: nobody has set it yet

// An element type of TensorFlow (its number, as in types.proto) in DLPack's words.
bool dlpack_type(int tensorflow_type, DLDataType* type);
std::size_t bytes_of(const DLDataType& type);

// What the core says of a failure, as TensorFlow's status. The text ends with the class of
// hvd_kernel.errors and the rank, "[hvd_kernel.errors.RankDied, rank 2]", by which
// hvd_kernel/tensorflow/library.py finds it again.
Status failure(std::int32_t code, const std::string& text, std::int32_t rank = -1);
Status not_initialized();

// A tensor of TensorFlow as the core sees it. `shape` must outlive it.
DLTensor view(void* data, const DLDataType& type, std::vector<std::int64_t>* shape);

}  // namespace hvd::tf
