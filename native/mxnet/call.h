// One call of a collective: the state shared by MXNet and the core until the operation has ended.
//
// push     Python's thread: the call is queued in MXNet's engine, after the writers of its arrays
// run      a thread of that engine, when the arrays are ready: enqueues the call in the core
// done     a thread of the core, or the running one before it returns: ends the operation for
// MXNet,
//          whose dependents then run
// drop     MXNet has released the operation; without a run if the computation of an array failed
//
// Names. Ranks match operations by name, and a name may be in flight only once. Calls of one name
// are enqueued in the core in the order in which they were pushed, one after another: the n-th call
// matches the n-th on all ranks, whichever arrays are ready first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "c_api/plugin.h"
#include "mxnet/foreign.h"

namespace hvd::mxnet {

// The request of Python: hvd_kernel/mxnet/library.py has the same fields.
struct Request {
  const char* name;
  std::int32_t kind, set, op, root;
  double prescale, postscale;
  std::int32_t count, priority;
  Array* inputs;
  Array* outputs;  // of reducescatter with this rank's rows; the inputs themselves: in place
};

struct Call {
  explicit Call(const Request& request);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::string name;
  std::int32_t kind, set, op, root;
  double prescale, postscale;
  // Views of the caller's arrays, which Python may free before the run; alive until the end.
  std::vector<Array> inputs, outputs;
  std::vector<std::vector<std::int64_t>> shapes, output_shapes;
  std::vector<DLDataType> types;

  OnComplete on_complete{};
  bool queued = false, is_ready = false;  // state in the queue of its name
};

// "" or the error, of MXNet or ours.
std::string push(const Request& request);

// Counters, read by hvd_mxnet_counters.
struct Counters {
  std::int64_t pushed, run, ended, dropped;
};
extern Counters counters;

}  // namespace hvd::mxnet
