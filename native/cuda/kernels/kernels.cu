// The functions that kernels.cc launches; their bodies are in loops.cuh.
#include "cuda/kernels/loops.cuh"
#include "cuda/kernels/ring.cuh"

namespace hvd::cuda {
namespace {

__device__ __forceinline__ Where here() { return {blockIdx.x, gridDim.x, threadIdx.x}; }

}  // namespace

#define HVD_CUDA_KERNEL(name, Call, body)                   \
  extern "C" __global__ void __launch_bounds__(kThreads, 2) \
      hvd_##name(const __grid_constant__ Call call) {       \
    body(call, here());                                     \
  }
#define HVD_CUDA_FOLD(name, Format, Op) HVD_CUDA_KERNEL(name, FoldCall, (fold_lanes<Format, Op>))
#define HVD_CUDA_MOVE(name, Format, Way) HVD_CUDA_KERNEL(name, MoveCall, (move_lanes<Format, Way>))
#define HVD_CUDA_SHARE(name, Format, Op) \
  HVD_CUDA_KERNEL(name, SharedCall, (fold_shared_lanes<Format, Op>))
#define HVD_CUDA_RING(name, Format, Op) \
  HVD_CUDA_KERNEL(name, RingCall, (ring_allreduce<Format, Op>))

HVD_CUDA_FOLDS(HVD_CUDA_FOLD)
HVD_CUDA_MOVES(HVD_CUDA_MOVE)
HVD_CUDA_FLOAT_SUMS(HVD_CUDA_SHARE, shared)
HVD_CUDA_FLOAT_SUMS(HVD_CUDA_RING, ring)
HVD_CUDA_KERNEL(fill, FillCall, fill_bytes)

}  // namespace hvd::cuda
