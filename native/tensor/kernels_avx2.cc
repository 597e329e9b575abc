#include "tensor/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <type_traits>

#define HVD_ISA avx2
#define HVD_ISA_NAME "avx2"
#define HVD_TARGET __attribute__((target("avx2,f16c")))

namespace hvd::avx2 {
namespace {

HVD_TARGET std::size_t half_done_widen(float* out, const Float16* in, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  return i;
}

HVD_TARGET std::size_t half_done_narrow(Float16* out, const float* in, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}

}  // namespace
}  // namespace hvd::avx2

#include "tensor/kernels.inc"

namespace hvd {

const Kernels* avx2_kernels() {
  return __builtin_cpu_supports("avx2") ? &avx2::kTable : nullptr;  // which all have F16C as well
}

}  // namespace hvd

#else

namespace hvd {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace hvd

#endif
