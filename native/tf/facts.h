// Kernels that ask the engine and move nothing: size, rank and the like, asked whenever the graph
// runs, so that a graph that was traced before a new init() is right after it.
#pragma once

#include "tf/foreign.h"

namespace hvd::tf {

struct Fact {
  explicit Fact(TF_OpKernelConstruction* construction);
  std::int32_t set;
};

void size(void* fact, TF_OpKernelContext* context);
void rank(void* fact, TF_OpKernelContext* context);
void local_size(void* fact, TF_OpKernelContext* context);
void local_rank(void* fact, TF_OpKernelContext* context);
void included(void* fact, TF_OpKernelContext* context);
// No bytes: the input that keeps TensorFlow from computing a collective of constants once and for
// all, and from taking two equal ones for one. It is stateful, the collectives are not: those would
// be carried out one after the other.
void ticket(void* fact, TF_OpKernelContext* context);
// No output: counts a step of training each time it runs.
void step(void* fact, TF_OpKernelContext* context);
// So too: counts as many samples as its input says.
void samples(void* fact, TF_OpKernelContext* context);

}  // namespace hvd::tf
