// Element-wise kernels of the collectives: out[i] from the partial sum that came over the wire and
// this rank's own input.
//   wire dtype   what partial sums travel and add up in: float32 for float16 and bfloat16 (rounded
//   once, at the end), else the dtype itself before       factor on every rank's input (prescale);
//   1 = none after        factor on the finished sum (postscale);   1 = none divisor      the
//   finished sum is divided by it (Average: the number of ranks); 1 = none. Integers truncate
//   toward zero.
// Factors work in double for integers and float64, in float for the rest. Integer sums wrap around.
// Every sum is (partial + input), rounded per addition, with no fused multiply-add: the same bits
// on every machine. `out` may be the same memory as `input` (in place); no other overlap. User
// memory is aligned to its elements, as frameworks align it.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace hvd {

struct Scaling {
  double before = 1.0;
  double after = 1.0;
  double divisor = 1.0;
};

Dtype wire_dtype(Dtype dtype);

// wire[i] = before * input[i]                         (the first rank of a chunk's way round the
// ring)
void load(Dtype dtype, void* wire, const void* input, std::size_t count, double before);

// wire_out[i] = wire_in[i] + before * input[i]        (the ranks between); wire_out may be wire_in
void accumulate(Dtype dtype, void* wire_out, const void* wire_in, const void* input,
                std::size_t count, double before);

// out[i] = copy[i] = round(after * (wire_in[i] + before * input[i]) / divisor), in `dtype`.
// copy (the slot that carries the result on) may be null.
void finish(Dtype dtype, void* out, void* copy, const void* wire_in, const void* input,
            std::size_t count, const Scaling& scaling);

// out[i] = copy[i] = in[i]; a memory copy that reads `in` once. copy may be null.
void pass_on(void* out, void* copy, const void* in, std::size_t bytes);

// out[i] = round(after * before * input[i] / divisor): one rank alone.
void scale(Dtype dtype, void* out, const void* input, std::size_t count, const Scaling& scaling);

}  // namespace hvd
