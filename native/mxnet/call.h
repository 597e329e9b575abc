// One call of a collective: what MXNet and the core hold of each other until the operation has
// ended.
//
// push     Python's thread: the call is queued in MXNet's engine, behind what writes its arrays
// run      a thread of that engine, when the arrays are ready: hands the call to the core
// done     a thread of the core, or the one that runs it before that has returned: the operation
//          ends for MXNet, and what waits for its results goes on
// drop     MXNet has forgotten the operation. Where an array's own computation had failed, it comes
//          without a run
//
// Names. Ranks meet by the operation's name, and no two operations may be under way under one name.
// Calls of one name are handed to the core in the order in which they were pushed, one after the
// other: on all ranks the n-th meets the n-th, whichever arrays are ready first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "c_api/plugin.h"
#include "mxnet/foreign.h"

namespace hvd::mxnet {

// What Python asks for: hvd_kernel/mxnet/library.py has the same fields.
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
  // Of our own, alive until the end: views of the caller's, whom Python may free before the run.
  std::vector<Array> inputs, outputs;
  std::vector<std::vector<std::int64_t>> shapes, output_shapes;
  std::vector<DLDataType> types;

  OnComplete on_complete{};
  bool queued = false, is_ready = false;  // of the queue of its name
};

// "" or why it was not pushed, as MXNet or we say it.
std::string push(const Request& request);

// What has been counted so far: hvd_mxnet_counters.
struct Counters {
  std::int64_t pushed, run, ended, dropped;
};
extern Counters counters;

}  // namespace hvd::mxnet
