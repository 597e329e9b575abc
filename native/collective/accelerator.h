// Accelerator: what a plugin provides for tensors on its devices: streams, memory, and backends.
// The core knows it only by this header and its file name; libhvd_cuda.so is loaded with the first
// device tensor.
//
// Terms.
//   stream   a device's queue of work, as the frontend has it (a CUstream); nullptr: the default
//   event    a point in a stream: it is reached when all work enqueued before is done
//   ready    the event that marks the inputs of an operation as ready
//   done     the event that marks its outputs as ready
// Nothing here waits for a device. An operation is enqueued on the plugin's own stream, after the
// ready events of its tensors; the caller's stream continues after the done event.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "collective/backend/backend.h"
#include "tensor/dtype.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// The times of an operation on the device, by the host's clock (now_ns(), to some microseconds).
struct DeviceSpan {
  std::int64_t queued_ns = 0;  // earlier work on the device was done
  std::int64_t begun_ns = 0;   // and the inputs were ready
  std::int64_t done_ns = 0;
};

// Any thread.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Later work of the stream waits for the event. The host does not block.
  virtual Status stream_wait(void* stream) = 0;
  // An error: the device failed before it reached the event.
  virtual Result<bool> query() = 0;
  // True for part of a captured graph: reached whenever the graph runs, and may not be queried.
  virtual bool captured() const { return false; }
  // The times of a done event that has been reached. nullopt: not measured.
  virtual std::optional<DeviceSpan> span() { return std::nullopt; }
  // True if the event is reached and its times will be known soon.
  virtual bool span_pending() { return false; }
};
using DeviceEventPtr = std::shared_ptr<DeviceEvent>;

// Memory that every member of a group has on its device, accessible by all their devices.
struct DeviceRegion {
  std::shared_ptr<void> mine;           // this rank's part
  std::shared_ptr<void> mapping;        // of the other members' parts
  std::vector<std::ptrdiff_t> offsets;  // by group rank: from this rank's part to the member's
};

// Sums over all completed operations. exposed: the time for which frontends' streams waited for
// them.
struct DeviceTimes {
  std::int64_t busy_ns = 0;
  std::int64_t exposed_ns = 0;
};

// Any device of this process, chosen by the plugin: for a rank that has joined.
constexpr int kAnyDevice = -2;

// Events and memory may outlive it; the mesh and the host's backend outlive it.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Any thread; opens the device. kInvalidArgument: the plugin can never use it; other errors: it
  // failed.
  virtual Status open(int device) = 0;
  // Any thread. kInvalidArgument: no such device.
  virtual Result<DeviceEventPtr> record(int device, void* stream) = 0;
  // Device memory, 256-byte aligned, freed after all work that uses it. For work after the events
  // of the current operation or a later one. kUnavailable: not enough memory.
  virtual Result<std::shared_ptr<void>> allocate(int device, std::size_t bytes) = 0;

  // Progress-lock owner only; all members of the group make these calls in the same order. begin()
  // returns the backend for the operations up to end(), which run after `ready`; there may be none,
  // if the members have found that one of them lacks memory. bytes: of the whole operation, the
  // same on all members. At the first operation of a group its members exchange their capabilities
  // over their links and choose alike. After a failure nothing more is begun. Scaling::before
  // applies to this rank's own inputs: 1 on a rank that substitutes an identity, whatever it is on
  // the others.
  virtual Result<Backend*> begin(int device, const Group& group, std::size_t bytes,
                                 const std::vector<DeviceEventPtr>& ready) = 0;
  virtual Result<DeviceEventPtr> end() = 0;
  // Progress-lock owner: whether events of later operations have spans.
  virtual void measure(bool on) = 0;
  // Progress-lock owner: true if a device of this rank is known to be time-sliced between processes
  // of the job.
  virtual bool in_turns() const = 0;
  // As begin(). Allocates `bytes` for each member, which allreduce_shared() reduces in place. An
  // error is the same on all members unless they were aborted: that of the first member without
  // memory.
  virtual Result<DeviceRegion> share(int device, const Group& group, std::size_t bytes) = 0;
  // Progress-lock owner: waits until all begun operations are done here, or for the abort. Once all
  // members have returned, no device uses a region any more, and it can be released; unreleased
  // ones are freed at the end, when nothing is in flight.
  virtual Status drain() = 0;
  virtual void release(const DeviceRegion& region) = 0;
  // After the work in flight: fill with the identity of the operation (for a rank that has joined).
  virtual Status fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) = 0;

  // Any thread.
  virtual DeviceTimes times() = 0;
  // True if no operation is in flight: neither here, nor at peers in memory of this rank. Any
  // thread; polled by an orderly shutdown before abandon().
  virtual bool idle() = 0;
  // The engine has ended: release all work on devices that waits for other ranks, with whatever
  // data there is. Any thread; returns soon. Nothing is begun afterwards.
  virtual void abandon() = 0;
};

struct AcceleratorOptions {
  std::string operations =
      "auto";                 // auto | ring | nccl | prefer-nccl | staged (HVD_GPU_OPERATIONS)
  std::string ring = "auto";  // auto | slices | persistent (HVD_GPU_RING)
  std::string driver;         // file of the driver; empty: the system's. Tests use a fake.
  std::size_t arena_bytes = std::size_t{64} << 20U;  // device memory of this rank that peers map
  double self_test_seconds = 20;                     // time limit of a self-test operation
};

constexpr std::uint32_t kAcceleratorVersion = 8;
constexpr const char* kCudaPlugin = "libhvd_cuda.so";
constexpr const char* kCudaSymbol = "hvd_cuda_open";

// The function that the plugin exports as kCudaSymbol. nullptr and the reason: no driver, no
// device, or another version. cpu: the backend for host memory (staged copies).
using OpenAccelerator = Accelerator* (*)(std::uint32_t version, Mesh& mesh, Backend& cpu,
                                         const AcceleratorOptions& options, Status& why);

// The accelerator of one engine. Its plugin is loaded with the first device tensor, from the folder
// of this library. Without a plugin, a driver or a device there is no accelerator, and the reason
// is kept.

class Accelerators {
 public:
  // mesh and cpu outlive it. open: replaces the plugin's function (tests); nullptr: the plugin's.
  Accelerators(Mesh& mesh, Backend& cpu, const AcceleratorOptions& options, OpenAccelerator open);

  // Any thread; the first call loads it. kInvalidArgument: no accelerator, with reason and remedy.
  Result<Accelerator*> get();
  // Any thread. The reason why tensors on a device are never supported; "": they are. Other
  // failures of a device are reported by its operations, on all ranks.
  std::string why_not(int device);
  // nullptr: not loaded yet, or not available.
  Accelerator* loaded() const { return loaded_.load(std::memory_order_acquire); }

 private:
  Accelerator* load(std::string& why_not) REQUIRES(mutex_);

  Mesh& mesh_;
  Backend& cpu_;
  const AcceleratorOptions options_;
  const OpenAccelerator open_;
  Mutex mutex_;
  bool tried_ GUARDED_BY(mutex_) = false;
  std::string why_not_ GUARDED_BY(mutex_);
  std::unique_ptr<Accelerator> accelerator_ GUARDED_BY(mutex_);
  std::atomic<Accelerator*> loaded_{nullptr};
};

}  // namespace hvd
