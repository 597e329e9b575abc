#include "tensor/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <type_traits>

#define HVD_ISA avx512
#define HVD_ISA_NAME "avx512"
#define HVD_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace hvd::avx512 {
namespace {

// The masked forms: GCC 12 warns of an uninitialised value inside the plain ones.
HVD_TARGET std::size_t half_done_widen(float* out, const Float16* in, std::size_t count) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(out + i,
                     _mm512_maskz_cvtph_ps(
                         0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i))));
  return i;
}

HVD_TARGET std::size_t half_done_narrow(Float16* out, const float* in, std::size_t count) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out + i),
        _mm512_maskz_cvtps_ph(0xFFFF, _mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}

}  // namespace
}  // namespace hvd::avx512

#include "tensor/kernels.inc"

namespace hvd {

const Kernels* avx512_kernels() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl")
             ? &avx512::kTable
             : nullptr;
}

}  // namespace hvd

#else

namespace hvd {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace hvd

#endif
