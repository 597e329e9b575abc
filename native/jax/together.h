// Results of a program's reductions, given back unchanged once all of them are there.
//
// XLA has a program's buffers by the order in which it would run alone: an optimizer's update could
// stand right behind its gradient, whose memory then is the next gradient's, which would have to
// wait for that reduction. Who takes all of them at once keeps them apart, and the backward pass
// goes on beside the reductions.
#pragma once

#include "jax/foreign.h"

namespace hvd::jax {

// As XLA calls it. A result that lies elsewhere than its operand is copied.
Error* together(Frame* frame);

}  // namespace hvd::jax
