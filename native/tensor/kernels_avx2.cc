#include "tensor/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "tensor/kernels_isa.h"

#define HVD_ISA avx2
#define HVD_ISA_NAME "avx2"
#define HVD_TARGET __attribute__((target("avx2,f16c")))
#define HVD_VECTOR 32

namespace hvd::avx2 {
namespace {

template <typename Vec>
HVD_INLINE Vec load_halves(const std::uint16_t* from) {
  return static_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

template <typename Vec>
HVD_INLINE void store_halves(std::uint16_t* to, Vec value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(static_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
}

template <typename Vec>
HVD_INLINE Vec load_words(const std::uint16_t* from) {
  return reinterpret_cast<Vec>(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

template <typename Vec>
HVD_INLINE void store_words(std::uint16_t* to, Vec value) {
  const auto words = reinterpret_cast<__m256i>(value);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
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
