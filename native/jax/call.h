// One call of a collective in a program of XLA's: what XLA and the core hold of each other until
// the operation has ended.
//
// Names. Ranks meet by the operation's name, which hvd_kernel/jax/names.py gives to each call in a
// program. Where a compiled function is called twice in another one, or a loop is unrolled, one
// name runs twice; if both are under way at a time, XLA may have begun them in another order on
// each rank, so the second is refused.
//
// On a GPU the handler returns when all ranks have agreed and the operation is behind what its
// stream has; the stream goes on behind the result, and the host waits for nothing of the GPU.
//
// Threads. A small operation ends before enqueue() returns, and the handler returns its result.
// Otherwise XLA gets a future, and goes on with the program on the thread that sets it: one of ours
// (completers.h), never one of the core's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "c_api/plugin.h"
#include "jax/foreign.h"

namespace hvd::jax {

struct Call {
  const Api* api = nullptr;
  const Futures* functions = nullptr;
  Future* future = nullptr;

  std::string name;
  std::int32_t kind = 0, set = 0, op = 0, root = 0;
  std::int32_t traced_size = 0;  // of the set, where shapes depend on it; else 0
  std::int32_t only = -1;        // a rank: the others' results are zero
  std::int32_t step = 0;         // 1: it ends the reduction of a step's gradients
  std::int32_t samples = 0;      // that went into them
  double prescale = 1, postscale = 1;
  std::vector<DLDataType> types;
  std::vector<std::vector<std::int64_t>> shapes, output_shapes;
  std::vector<void*> data, output_data;

  DLDevice device{kDLCPU, 0};
  void* stream = nullptr;  // of the device
  bool is_under_way = false, is_zero = false;
  std::int32_t code = HVD_OK, failed_rank = -1;
  std::string text;
  std::vector<hvd_output> received;  // kept of the core

  enum Phase : std::int32_t { kBegun, kWaited, kEnded };
  std::atomic<std::int32_t> phase{kBegun};
};

// As XLA calls it; nullptr: it is under way, or has ended well.
Error* run(Frame* frame);

// The same of a program on a GPU.
Error* run_on_device(Frame* frame);

// Ends it for XLA, on a thread that may go on with the program.
void complete(Call* call);

bool any_under_way();

// What has been counted so far: hvd_jax_counters.
struct Counters {
  std::int64_t calls, at_once, aliased, ended, steps, samples;
};
extern Counters counters;
void count(std::int64_t* counter, std::int64_t by = 1);

}  // namespace hvd::jax
