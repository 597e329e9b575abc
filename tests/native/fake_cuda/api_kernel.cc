// Modules and kernels, which are functions of the host.
#include <cstring>

#include "fake_cuda/queue.h"

using fake::world;

namespace fake {
namespace {

const FakeKernel* kernel_of(const char* name) {
  std::size_t count = 0;
  const FakeKernel* const all = fake_cuda_kernels(&count);
  for (std::size_t i = 0; i < count; ++i)
    if (std::strcmp(all[i].name, name) == 0) return &all[i];
  return nullptr;
}

// The arguments as they are now.
std::vector<std::vector<char>> copies(const FakeKernel& kernel, void** parameters) {
  std::vector<std::vector<char>> all;
  for (std::size_t i = 0; i < kernel.parameters; ++i) {
    const char* const from = static_cast<const char*>(parameters[i]);
    all.emplace_back(from, from + kernel.parameter_bytes[i]);
  }
  return all;
}

bool fits(FakeDim grid, FakeDim block) {
  const unsigned threads = block.x * block.y * block.z;
  return threads > 0 && threads <= 1024 && grid.x > 0 && grid.x < 0x80000000U && grid.y > 0 &&
         grid.y < 65536 && grid.z > 0 && grid.z < 65536;
}

bool is_function(CUfunction function) {
  const std::lock_guard<std::mutex> lock(world().mutex);
  for (const auto& [key, known] : world().functions)
    if (known.get() == function) return world().modules.count(function->module) == 1;
  return false;
}

}  // namespace
}  // namespace fake

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  FAKE_CONTEXT_CALL("cuModuleLoadData", context);
  if (image == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  auto made = std::make_unique<CUmod_st>();
  made->context = context;
  *module = made.get();
  const std::lock_guard<std::mutex> lock(world().mutex);
  world().modules.insert(made.get());
  world().all_modules.push_back(std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  FAKE_CONTEXT_CALL("cuModuleUnload", context);
  const std::lock_guard<std::mutex> lock(world().mutex);
  return world().modules.erase(module) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  FAKE_CONTEXT_CALL("cuModuleGetFunction", context);
  const FakeKernel* const kernel = fake::kernel_of(name);
  const std::lock_guard<std::mutex> lock(world().mutex);
  if (world().modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
  auto& known = world().functions[{module, name}];
  if (known == nullptr) known = std::make_unique<CUfunc_st>();
  known->context = context;
  known->module = module;
  known->kernel = kernel;
  *function = known.get();
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned /*shared_bytes*/, CUstream given, void** parameters,
                        void** extra) {
  FAKE_CONTEXT_CALL("cuLaunchKernel", context);
  CUstream stream = nullptr;
  if (const CUresult found = fake::find_own_stream(given, context, stream); found != CUDA_SUCCESS)
    return found;
  if (!fake::is_function(function) || function->context != context)
    return CUDA_ERROR_INVALID_HANDLE;
  const FakeDim grid{grid_x, grid_y, grid_z};
  const FakeDim block{block_x, block_y, block_z};
  if (!fake::fits(grid, block) || extra != nullptr || parameters == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const FakeKernel& kernel = *function->kernel;
  fake::submit(stream, [&kernel, grid, block, copied = fake::copies(kernel, parameters)] {
    std::vector<void*> pointers;
    for (const auto& one : copied) pointers.push_back(const_cast<char*>(one.data()));  // NOLINT
    kernel.run(grid, block, pointers.data());
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
