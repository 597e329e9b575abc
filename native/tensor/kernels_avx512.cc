#include "tensor/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "tensor/kernels_isa.h"

#define HVD_ISA avx512
#define HVD_ISA_NAME "avx512"
#define HVD_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define HVD_VECTOR 64

namespace hvd::avx512 {
namespace {

// The masked forms: GCC 12 warns of an uninitialised value inside the plain ones.
constexpr __mmask16 kAll = 0xFFFF;

template <typename Vec>
HVD_INLINE Vec load_halves(const std::uint16_t* from) {
  return static_cast<Vec>(
      _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}

template <typename Vec>
HVD_INLINE void store_halves(std::uint16_t* to, Vec value) {
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(to),
      _mm512_maskz_cvtps_ph(kAll, static_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
}

template <typename Vec>
HVD_INLINE Vec load_words(const std::uint16_t* from) {
  return reinterpret_cast<Vec>(_mm512_maskz_cvtepu16_epi32(
      kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}

template <typename Vec>
HVD_INLINE void store_words(std::uint16_t* to, Vec value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtepi32_epi16(kAll, reinterpret_cast<__m512i>(value)));
}

}  // namespace
}  // namespace hvd::avx512

#include "tensor/kernels.inc"

namespace hvd {

const Kernels* avx512_kernels() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
             ? &avx512::kTable
             : nullptr;
}

}  // namespace hvd

#else

namespace hvd {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace hvd

#endif
