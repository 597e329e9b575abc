// What kernels.cc and its siblings need before they include kernels.inc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/half.h"
#include "tensor/kernels.h"

// `out` may be an input, yet element i depends on element i only: the compiler may vectorise.
#if defined(__clang__)
#define HVD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define HVD_UNROLL _Pragma("unroll")
#else
#define HVD_INDEPENDENT _Pragma("GCC ivdep")
#define HVD_UNROLL _Pragma("GCC unroll 8")
#endif

#define HVD_INLINE HVD_TARGET inline __attribute__((always_inline))
