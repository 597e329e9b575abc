// libhvd_cuda.so: its entry point for the core.
#include "cuda/accelerator.h"

extern "C" __attribute__((visibility("default"))) hvd::Accelerator* hvd_cuda_open(
    std::uint32_t version, hvd::Mesh& mesh, hvd::Backend& cpu,
    const hvd::AcceleratorOptions& options, hvd::Status& why) {
  if (version != hvd::kAcceleratorVersion) {
    why = hvd::Status::make(
        hvd::Code::kUnavailable,
        std::string(hvd::kCudaPlugin) + " is of another version of hvd-kernel; install it again",
        "cuda/plugin");
    return nullptr;
  }
  auto opened = hvd::cuda::CudaAccelerator::open(mesh, cpu, options);
  why = opened.status();
  return opened ? opened.take().release() : nullptr;
}

static_assert(std::is_same_v<hvd::OpenAccelerator, decltype(&hvd_cuda_open)>);
