// One call of a collective in an XLA program: the state shared by XLA and the core until the
// operation has ended.
//
// Names. Ranks match operations by name, which hvd_kernel/jax/operation.py assigns to each call in
// a program. If a compiled function is called twice in another one, or a loop is unrolled, one name
// runs twice. If both are in flight at a time, XLA may have begun them in different orders on the
// ranks, so the second is refused.
//
// On a GPU the handler returns when all ranks have agreed and the operation is enqueued after the
// work of its stream. The stream waits for the result; the host does not wait for the GPU.
//
// Threads. A small operation ends before enqueue() returns, and the handler returns its result.
// Otherwise XLA gets a future, and continues the program on the thread that sets it: one of our
// completer threads, never one of the core's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "c_api/hvd_core.h"
#include "c_api/plugin.h"
#include "jax/foreign.h"

namespace hvd::jax {

struct Call {
  const Api* api = nullptr;
  const Futures* functions = nullptr;
  Future* future = nullptr;

  std::string name;
  std::int32_t kind = 0, set = 0, op = 0, root = 0;
  std::int32_t traced_size = 0;  // of the set, if shapes depend on it; else 0
  std::int32_t only = -1;        // a rank: results of other ranks are zero
  std::int32_t step = 0;         // 1: last reduction of a step's gradients
  std::int32_t samples = 0;      // number of samples in them
  double prescale = 1, postscale = 1;
  std::vector<DLDataType> types;
  std::vector<std::vector<std::int64_t>> shapes, output_shapes;
  std::vector<void*> data, output_data;

  DLDevice device{kDLCPU, 0};
  void* stream = nullptr;  // of the device
  bool is_under_way = false, is_zero = false;
  std::int32_t code = HVD_OK, failed_rank = -1;
  std::string text;
  std::vector<hvd_output> received;  // owned, released with drop()

  enum Phase : std::int32_t { kBegun, kWaited, kEnded };
  std::atomic<std::int32_t> phase{kBegun};
};

// XLA's handler; nullptr: in flight, or succeeded.
Error* run(Frame* frame);

// The handler of a program on a GPU.
Error* run_on_device(Frame* frame);

// XLA's handler that returns the results of a program's reductions unchanged once all of them are
// ready. A result that is not in its operand's memory is copied.
//
// XLA assigns a program's buffers by sequential order: an optimizer's update could directly follow
// its gradient, whose memory would be reused for the next gradient, which would then have to wait
// for that reduction. Consuming all results at once keeps the buffers apart, and the backward pass
// overlaps the reductions.
Error* together(Frame* frame);

// End the call for XLA, on a thread that may continue the program.
void complete(Call* call);

bool any_under_way();

// Counters, read by hvd_jax_counters.
struct Counters {
  std::int64_t calls, at_once, aliased, ended, steps, samples;
};
extern Counters counters;
void count(std::int64_t* counter, std::int64_t by = 1);

// Convert an XLA frame to a call: attributes and buffers. Returns "" or the error.
std::string read(const Frame& frame, Call* call);

// True if the core supports the type.
bool type_of(const Buffer& buffer, DLDataType* type);

std::size_t bytes(const std::vector<std::int64_t>& shape, const DLDataType& type);

// The GPU of an XLA program, found by the addresses of its arrays, because XLA's FFI version 0.1
// does not provide it.

// CUDA's cuPointerGetAttribute; 0: success.
using PointerAttribute = int (*)(void* value, int attribute, std::uintptr_t pointer);

// Set the device of the first array that has elements, or the first GPU. Returns "" or the error.
std::string device_of(const Frame& frame, DLDevice* device);

// For tests: replace the driver's function; nullptr: the driver.
void replace_driver(PointerAttribute attribute);

}  // namespace hvd::jax
