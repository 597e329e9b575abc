// A driver that writes down what it is given for a stream instead of doing it: words and kernels,
// as steps with the memory that each reads and writes. The rest goes to the fake.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/kernels/functions.h"
#include "cuda/rings.h"

namespace hvd::cuda::test {

struct Extent {
  std::uintptr_t begin = 0, end = 0;
};

struct Step {
  enum Kind { kWait, kWrite, kKernel } kind = kKernel;
  std::uintptr_t word = 0;  // of the first two
  std::uint32_t value = 0;
  std::vector<Extent> reads, writes;  // of a kernel
};
using Steps = std::vector<Step>;

// Where this thread's steps go; null: everything is done.
inline thread_local Steps* recording = nullptr;

class KernelNames {
 public:
  void add(CUfunction function, const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_[function] = name;
  }
  std::string of(CUfunction function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return names_[function];
  }

 private:
  std::mutex mutex_;
  std::map<CUfunction, std::string> names_;
};

inline KernelNames& kernel_names() {
  static KernelNames names;
  return names;
}

inline Extent extent(const void* begin, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  return {address, address + bytes};
}

inline CUresult record_words(CUstream stream, unsigned count, CUstreamBatchMemOpParams* words,
                             unsigned flags) {
  if (recording == nullptr) return fake_driver().cuStreamBatchMemOp(stream, count, words, flags);
  for (unsigned i = 0; i < count; ++i) {
    const bool waits = words[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
    recording->push_back({waits ? Step::kWait : Step::kWrite,
                          static_cast<std::uintptr_t>(words[i].waitValue.address),
                          words[i].waitValue.value,
                          {},
                          {}});
  }
  return CUDA_SUCCESS;
}

inline CUresult record_name(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = fake_driver().cuModuleGetFunction(function, module, name);
  if (result == CUDA_SUCCESS) kernel_names().add(*function, name);
  return result;
}

// Kernels of 4-byte elements, and copies of whatever width.
inline CUresult record_kernel(CUfunction function, unsigned x, unsigned y, unsigned z,
                              unsigned threads, unsigned more, unsigned most, unsigned shared,
                              CUstream stream, void** parameters, void** extra) {
  if (recording == nullptr)
    return fake_driver().cuLaunchKernel(function, x, y, z, threads, more, most, shared, stream,
                                        parameters, extra);
  const std::string name = kernel_names().of(function);
  Step step;
  if (name == "hvd_add_f32") {
    const auto& call = *static_cast<const FoldCall*>(parameters[0]);
    for (unsigned i = 0; i < call.inputs; ++i)
      step.reads.push_back(extent(call.input[i], call.lanes * 4));
    step.writes.push_back(extent(call.out, call.lanes * 4));
  } else {
    REQUIRE(name.find("hvd_copy_") == 0);
    const std::size_t width = std::stoul(name.substr(9));
    const auto& call = *static_cast<const MoveCall*>(parameters[0]);
    for (unsigned i = 0; i < call.pieces; ++i) {
      step.reads.push_back(extent(call.piece[i].in, call.piece[i].lanes * width));
      step.writes.push_back(extent(call.piece[i].out, call.piece[i].lanes * width));
    }
  }
  recording->push_back(step);
  return CUDA_SUCCESS;
}

inline Driver recording_driver() {
  Driver driver = fake_driver();
  driver.cuStreamBatchMemOp = record_words;
  driver.cuModuleGetFunction = record_name;
  driver.cuLaunchKernel = record_kernel;
  return driver;
}

}  // namespace hvd::cuda::test
