// The loops behind reduce.h, once per instruction set: kernels.cc (baseline), kernels_avx2.cc,
// kernels_avx512.cc include kernels.inc with HVD_ISA (a namespace), HVD_TARGET (a function
// attribute), HVD_VECTOR (bytes of a register) and the conversions of half floats set.
//   lane    what a register holds several of. An element is one lane, of a complex dtype two: every
//           count below is in lanes
//   row     the loops of one dtype
// Every loop reads a fast path of all its inputs before it writes that lane: outputs may be inputs.
#pragma once

#include <array>
#include <cstddef>

#include "tensor/dtype.h"

namespace hvd {

// What happens to a finished result: times `by`, then divided by `over`. Loops of floats do it in
// their registers; loops of integers and bool leave it to `scale`.
struct Factors {
  double by = 1.0;
  double over = 1.0;
  bool none() const { return by == 1.0 && over == 1.0; }
};

// out = copy = inputs[0] op inputs[1] op ..., from the left; copy may be null. At least two inputs.
constexpr std::size_t kInputsAtOnce = 4;
using Fold = void (*)(void* out, void* copy, const void* const* inputs, std::size_t n_inputs,
                      std::size_t count, const Factors& factors);
// out[i] = factors of (inputs[0][at + i] + inputs[1][at + i] + ...), summed in a type that holds
// every sum.
using ExactSum = void (*)(void* out, const void* const* inputs, std::size_t n_inputs,
                          std::size_t at, std::size_t count, const Factors& factors);
// out = in, in the type of out.
using Move = void (*)(void* out, const void* in, std::size_t count, const Factors& factors);

// By what the first input is and what the outputs are; the other inputs are as stored.
struct OpKernels {
  Fold whole = nullptr;       // stored -> stored
  Fold begin = nullptr;       // stored -> wire
  Fold accumulate = nullptr;  // wire -> wire
  Fold finish = nullptr;      // wire -> stored
};

constexpr int kDistinctOps = 4;  // Average is Sum here, and Adasum none of ours

struct Row {
  std::size_t lanes = 1;                    // of an element
  std::size_t lane_bytes = 1;               // as stored
  bool scales_in_registers = false;         // see Factors
  std::array<OpKernels, kDistinctOps> ops;  // by op_index; all null where the dtype cannot
  Move scale = nullptr;                     // stored -> stored
  Move widen = nullptr;                     // stored -> wire; null where they are the same
  Move narrow = nullptr;                    // wire -> stored; null where they are the same
  ExactSum exact_sum = nullptr;             // of integers alone (folds_exactly in reduce.h)
};

struct Kernels {
  const char* name;
  std::array<Row, kDtypeCount> rows;
  const Row& row(Dtype dtype) const { return rows[static_cast<std::size_t>(dtype)]; }
};

// Sum and Average 0, Min 1, Max 2, Product 3.
int op_index(ReduceOp op);

// The best that this machine has.
const Kernels& kernels();
const Kernels& baseline_kernels();
// Null where the machine cannot run them.
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
// What kernels() gives from now on, for tests; null: the best again.
void use_kernels(const Kernels* chosen);

}  // namespace hvd
