// Threads that end calls for XLA, and go on with its program in doing so: a pool that has one idle
// for each that ends, since the program may compute for long before it comes back.
#pragma once

namespace hvd::jax {

struct Call;

void complete_later(Call* call);

}  // namespace hvd::jax
