// libhvd_jax.so: collectives in XLA programs. Built without JAX; see foreign.h.
//
// hvd_kernel/jax/library.py loads it, passes it the core, and registers hvd_jax_handler.
#include "c_api/plugin.h"

#include <cstdint>

#include "jax/call.h"
#include "jax/foreign.h"

#define HVD_SHOWN __attribute__((visibility("default")))
extern "C" {

// table: the result of hvd_core_table().
HVD_SHOWN void hvd_jax_begin(const void* table) {
  hvd::plugin::table() = static_cast<const hvd_core*>(table);
}

HVD_SHOWN void* hvd_jax_handler(void* frame) {
  return hvd::jax::run(static_cast<hvd::jax::Frame*>(frame));
}

HVD_SHOWN void* hvd_jax_device_handler(void* frame) {
  return hvd::jax::run_on_device(static_cast<hvd::jax::Frame*>(frame));
}

HVD_SHOWN void* hvd_jax_together(void* frame) {
  return hvd::jax::together(static_cast<hvd::jax::Frame*>(frame));
}

HVD_SHOWN int hvd_jax_under_way() { return hvd::jax::any_under_way() ? 1 : 0; }

// Calls, those of them that ended on XLA's thread, results in the memory of their
// operands, calls that have ended, reductions of a step's gradients, and samples of the steps.
HVD_SHOWN void hvd_jax_counters(std::int64_t out[6]) {
  const hvd::jax::Counters& now = hvd::jax::counters;
  out[0] = now.calls, out[1] = now.at_once, out[2] = now.aliased, out[3] = now.ended;
  out[4] = now.steps, out[5] = now.samples;
}
}
