// Element-wise kernels of the collectives.
//   fold          a op b op c, from the left, in the order in which the collective gives them
//   wire dtype    what a partial result is kept in, and travels in where it must travel: float32
//                 for float16 and bfloat16 (rounded once, at the end), else the dtype itself
//   before        factor on every rank's input (prescale), rounded to `dtype` before the fold
//                 (Horovod's rule); 1 = none
//   after         factor on the finished result (postscale); 1 = none
//   divisor       the finished result is divided by it (Average: the number of ranks); 1 = none
// Factors work in double for integers and float64, in float for the rest; integers truncate toward
// zero and saturate. Sums and products of integers wrap around, but for sums that are scaled
// afterwards: see folds_exactly. Every step is rounded on its own, with no fused multiply-add: the
// same bits on every machine, with every instruction set, whatever the length of the call and the
// alignment. NaN: Min and Max give a NaN when any input is one. Outputs may be the same memory as
// an input (in place); no other overlap. User memory is aligned to its elements, as frameworks
// align it.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace hvd {

struct Scaling {
  double before = 1.0;
  double after = 1.0;
  double divisor = 1.0;
};

// The operation on every element. op is not kAdasum here (collective/algorithm/algorithms.h).
struct Reduction {
  Dtype dtype = Dtype::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scaling scaling;
};

Dtype wire_dtype(Dtype dtype);

// A sum of integers with factors behind it: an Average, or a Sum with a postscale. The mean fits
// where the sum need not, so fold() adds in a wider type, scales, and saturates only then. Partial
// sums would wrap around: algorithms give fold() all inputs at once, in any order (the sum is
// exact), and the steps of a ring are not for these.
bool folds_exactly(const Reduction& reduction);

// Memory, twice: out[i] = copy[i] = in[i]. Reads `in` once. copy may be null.
void pass_on(void* out, void* copy, const void* in, std::size_t bytes);
// out[i] = in[i], past the caches (slot_store.h). Not in place.
void pass_on_streaming(void* out, const void* in, std::size_t bytes);

// out[i] = round(before * in[i]), in `dtype`; a copy where before is 1.
void prescale(const Reduction& reduction, void* out, const void* in, std::size_t count);

// Several whole inputs at once, for algorithms that see them all (shared memory, small messages):
//   out[i] = copies[0][i] = ... = round(after * (inputs[0][i] op inputs[1][i] op ...) / divisor)
// Inputs are in `dtype` and prescaled already; `before` is ignored. At least one input;
// copies may be none. `out` and the copies may be inputs.
void fold(const Reduction& reduction, void* out, void* const* copies, std::size_t n_copies,
          const void* const* inputs, std::size_t n_inputs, std::size_t count);

// One step of a ring, where partial results travel in the wire dtype:
// wire[i] = before * input[i]                        the first rank of a chunk's way round the ring
void load(const Reduction& reduction, void* wire, const void* input, std::size_t count);
// wire_out[i] = wire_in[i] op before * input[i]      the ranks between; wire_out may be wire_in
void accumulate(const Reduction& reduction, void* wire_out, const void* wire_in, const void* input,
                std::size_t count);
// out[i] = copy[i] = round(after * (wire_in[i] op before * input[i]) / divisor), in `dtype`.
// copy (the slot that carries the result on) may be null.
void finish(const Reduction& reduction, void* out, void* copy, const void* wire_in,
            const void* input, std::size_t count);

// out[i] = round(after * wire[i] / divisor), in `dtype`: a partial result that was the last.
void finalize(const Reduction& reduction, void* out, const void* wire, std::size_t count);

// out[i] = round(after * round(before * input[i]) / divisor): one rank alone.
void scale(const Reduction& reduction, void* out, const void* input, std::size_t count);

// Fill with the identity of `op` (a rank that has joined): for sums -0.0 or 0,
// for products 1, for Min the largest value (infinity), for Max the smallest.
void fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count);

}  // namespace hvd
