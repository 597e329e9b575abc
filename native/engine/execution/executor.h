// Executor: executes a response on this rank's tensors, finishes their tasks, and records the
// times.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/trace.h"
#include "collective/select.h"
#include "engine/execution/counters.h"
#include "engine/execution/devices.h"
#include "engine/execution/groups.h"
#include "engine/execution/handles.h"
#include "engine/execution/passes.h"
#include "engine/execution/regions.h"
#include "engine/message/request.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// The parts of a rank's engine besides threads and messages.
struct Parts {
  Mesh& mesh;
  Handles& handles;
  Groups& groups;
  Regions& regions;
  Backends& backends;
  Devices& devices;
  Counters& counters;
  Trace& trace;
};

// Progress-lock owner only.
class Executor {
 public:
  Executor(const Parts& parts, const AlgorithmOptions& algorithms);

  // Finds this rank's tasks.
  Work prepare(Response response) const;
  // A failure leaves the links in an undefined state: the engine cannot continue.
  Status perform(const Work& work);
  // Any thread. While a timeline is written, the trace also has dtypes, shapes and device times.
  void timeline(bool on);

 private:
  using Step = Status (Executor::*)(const Work& work);

  Status perform_agreed(const Work& work);
  Status nothing(const Work& work);
  Status allreduce(const Work& work);
  Status broadcast(const Work& work);
  Status allgather(const Work& work);
  Status alltoall(const Work& work);
  Status reducescatter(const Work& work);
  Status join(const Work& work);
  Status add_set(const Work& work);
  Status remove_set(const Work& work);
  Status allocate(const Work& work);
  Status allocate_on_devices(const Work& work);
  Status release(const Work& work);
  Status return_memory(DeviceRegion region);
  Status tune(const Work& work);

  Result<std::shared_ptr<const Group>> group_of(const Work& work) const;
  Result<Backend*> backend_of(const Work& work, const Group& group);
  Status begin_on_device(const Work& work, const Group& group);
  Status end_on_device(const Work& work);
  Result<int> first_failing_rank(bool failed);
  Status meet();  // barrier of all ranks
  // Sets refusal_ if a rank of the group lacks memory for the work.
  Status vote(const Work& work, const Group& group, const Status& mine);
  void finish_all(const Work& work, const Ending& ending);
  void record(const Work& work, std::int64_t begin_ns);
  void record_on_device(const Work& work, const TraceCourse& course, std::int64_t begin_ns,
                        std::int64_t end_ns);

  const int rank_;
  const Parts parts_;
  AlgorithmOptions algorithms_;
  std::atomic<bool> timeline_{false};
  // State of the current operation.
  Backend* used_ = nullptr;
  Placement placement_;
  DeviceEventPtr done_;            // on a device
  std::int64_t met_ns_ = 0;        // when the devices of the group had met; 0: they had before
  std::int64_t allocated_ns_ = 0;  // when memory for the results was allocated; 0: none was needed
  Buffer scratch_;                 // until the operation is enqueued on the device
  Ending refusal_;  // the same on all ranks: the operation fails, the engine continues
};

}  // namespace hvd
