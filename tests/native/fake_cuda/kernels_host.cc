// The kernels of the fake driver: the bodies of native/cuda/kernels/loops.cuh, thread after thread.
#include "cuda/kernels/loops.cuh"
#include "cuda/kernels/ring.cuh"
#include "fake_cuda/fake_cuda.h"

namespace {

using namespace hvd::cuda;

template <typename Call, void (*body)(const Call&, const Where&)>
void run_all(FakeDim grid, FakeDim block, void** parameters) {
  const Call& call = *static_cast<const Call*>(parameters[0]);
  for (unsigned b = 0; b < grid.x; ++b)
    for (unsigned thread = 0; thread < block.x; ++thread) body(call, Where{b, grid.x, thread});
}

// Bodies that do all threads of a block themselves. Blocks look only at their like on other ranks.
template <void (*body)(const RingCall&, const Where&)>
void run_blocks(FakeDim grid, FakeDim, void** parameters) {
  const RingCall& call = *static_cast<const RingCall*>(parameters[0]);
  for (unsigned b = 0; b < grid.x; ++b) body(call, Where{b, grid.x, 0});
}

template <typename Call>
constexpr std::size_t kBytes[] = {sizeof(Call)};

#define HVD_FAKE_FOLD(name, Format, Op) \
  {"hvd_" #name, kBytes<FoldCall>, 1, run_all<FoldCall, fold_lanes<Format, Op>>},
#define HVD_FAKE_MOVE(name, Format, Way) \
  {"hvd_" #name, kBytes<MoveCall>, 1, run_all<MoveCall, move_lanes<Format, Way>>},
#define HVD_FAKE_SHARE(name, Format, Op) \
  {"hvd_" #name, kBytes<SharedCall>, 1, run_all<SharedCall, fold_shared_lanes<Format, Op>>},
#define HVD_FAKE_RING(name, Format, Op) \
  {"hvd_" #name, kBytes<RingCall>, 1, run_blocks<ring_allreduce<Format, Op>>},

constexpr FakeKernel kKernels[] = {
    HVD_CUDA_FOLDS(HVD_FAKE_FOLD)                // a comma ends each
    HVD_CUDA_MOVES(HVD_FAKE_MOVE)                //
    HVD_CUDA_FLOAT_SUMS(HVD_FAKE_SHARE, shared)  //
    HVD_CUDA_FLOAT_SUMS(HVD_FAKE_RING, ring)     //
    {"hvd_fill", kBytes<FillCall>, 1, run_all<FillCall, fill_bytes>},
};

}  // namespace

const FakeKernel* fake_cuda_kernels(std::size_t* count) {
  *count = sizeof kKernels / sizeof *kKernels;
  return kKernels;
}
