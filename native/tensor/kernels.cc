#include "tensor/kernels.h"

#include <type_traits>

#define HVD_ISA baseline
#define HVD_ISA_NAME "baseline"
#define HVD_TARGET

namespace hvd::baseline {
namespace {
std::size_t half_done_widen(float*, const Float16*, std::size_t) { return 0; }
std::size_t half_done_narrow(Float16*, const float*, std::size_t) { return 0; }
}  // namespace
}  // namespace hvd::baseline

#include "tensor/kernels.inc"

namespace hvd {

const Kernels& baseline_kernels() { return baseline::kTable; }

const Kernels& kernels() {
  static const Kernels& best = *[] {
    if (const Kernels* const wide = avx512_kernels()) return wide;
    if (const Kernels* const wide = avx2_kernels()) return wide;
    return &baseline_kernels();
  }();
  return best;
}

}  // namespace hvd
