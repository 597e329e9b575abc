// The loops behind reduce.h, once per instruction set: kernels.cc (baseline), kernels_avx2.cc,
// kernels_avx512.cc include kernels.inc with HVD_ISA (a namespace) and HVD_TARGET (a function
// attribute) set. kernels() picks the best that this machine has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/half.h"

namespace hvd {

// out may be an input itself; no other overlap.
template <typename T>
using Add = void (*)(T* out, const T* a, const T* b, std::size_t count);
template <typename T>
using Scale = void (*)(T* values, std::size_t count, double factor, double divisor);
template <typename T>
using Widen = void (*)(float* out, const T* in, std::size_t count);
template <typename T>
using Narrow = void (*)(T* out, const float* in, std::size_t count);

struct Kernels {
  const char* name;
  Add<std::uint8_t> add_uint8;
  Add<std::int32_t> add_int32;
  Add<std::int64_t> add_int64;
  Add<float> add_float32;
  Add<double> add_float64;
  Scale<float> scale_float32;
  Scale<double> scale_float64;
  Widen<Float16> widen_float16;
  Narrow<Float16> narrow_float16;
  Widen<Bfloat16> widen_bfloat16;
  Narrow<Bfloat16> narrow_bfloat16;
};

const Kernels& kernels();
const Kernels& baseline_kernels();
// Null where the machine cannot run them.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

}  // namespace hvd
