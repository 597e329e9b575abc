// Accelerator: what a plugin provides for tensors on its devices: streams, memory, and backends.
// The core knows it by this header and its file's name alone; libhvd_cuda.so is loaded with the
// first device tensor.
//
// Terms.
//   stream   a device's queue of work, as the frontend has it (a CUstream); null: the default one
//   event     a point in a stream: what was given to the stream before has been done when the event
//            is reached (an event)
//   ready    the event behind which the inputs of an operation are there
//   done     the event behind which its outputs are
// Nothing here waits for a device. An operation is given to the plugin's own stream, behind the
// ready events of its tensors; the caller's stream goes on behind the done event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/backend/backend.h"
#include "collective/backend/group.h"
#include "tensor/op.h"
#include "transport/mesh/mesh.h"

namespace hvd {

// When an operation was where, by the host's clock (now_ns(), to some microseconds).
struct DeviceSpan {
  std::int64_t queued_ns = 0;  // the device had done what was given to it before
  std::int64_t begun_ns = 0;   // and the inputs were there
  std::int64_t done_ns = 0;
};

// Any thread.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // What is given to the stream from now on comes after the event. The host does not wait.
  virtual Status stream_wait(void* stream) = 0;
  // An error: the device has failed before it came there.
  virtual Result<bool> query() = 0;
  // Part of a graph that is captured: it is reached whenever the graph runs, and may not be asked.
  virtual bool captured() const { return false; }
  // Of an operation's done event that has been reached. Nothing: nobody has measured it.
  virtual std::optional<DeviceSpan> span() { return std::nullopt; }
  // That it will be known soon though the event has been reached.
  virtual bool span_comes() { return false; }
};
using DeviceEventPtr = std::shared_ptr<DeviceEvent>;

// Memory that every member of a group has on its device, and that all their devices reach.
struct DeviceRegion {
  std::shared_ptr<void> mine;           // this rank's part
  std::shared_ptr<void> mapping;        // of the others' parts
  std::vector<std::ptrdiff_t> offsets;  // by group rank: from this rank's part to the member's
};

// Sums over all operations that have been done. exposed: of them, how long frontends' streams stood
// still for them.
struct DeviceTimes {
  std::int64_t busy_ns = 0;
  std::int64_t exposed_ns = 0;
};

// A device of this process, of the plugin's choice: for a rank that has joined.
constexpr int kAnyDevice = -2;

// Events and memory may outlive it; the mesh and the host's backend outlive it.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  // Any thread; opens the device. kInvalidArgument: it is none that the plugin can use, whatever
  // comes; else it has failed.
  virtual Status open(int device) = 0;
  // Any thread. kInvalidArgument: there is no such device.
  virtual Result<DeviceEventPtr> record(int device, void* stream) = 0;
  // Device memory, 256-byte aligned; given back behind all work that uses it. For what comes behind
  // the events of the operation that is being carried out, or of a later one. kUnavailable: there
  // is not that much.
  virtual Result<std::shared_ptr<void>> allocate(int device, std::size_t bytes) = 0;

  // Progress-lock owner only; what all members of the group do, in the same order. begin() gives
  // the backend for the operations up to end(), which come behind `ready`; there may be none, when
  // the members have found that one of them lacks memory. bytes: of the whole operation, the same
  // on all members. At the first operation of a group its members tell each other over their links
  // what they have, and choose alike. After a failure nothing more is begun. Scaling::before is of
  // this rank's own inputs: 1 on a rank that stands in with what changes no result, whatever it is
  // on the others.
  virtual Result<Backend*> begin(int device, const Group& group, std::size_t bytes,
                                 const std::vector<DeviceEventPtr>& ready) = 0;
  virtual Result<DeviceEventPtr> end() = 0;
  // Progress-lock owner: whether events of operations that are begun from now on have spans.
  virtual void measure(bool on) = 0;
  // Progress-lock owner: a device of this rank is known to run other processes of the job too, and
  // by turns: a time slice each.
  virtual bool in_turns() const = 0;
  // As begin(). `bytes` for each member, which allreduce_shared() reduces where they lie. An error,
  // alike on all members unless they have been aborted: the first that has none says why.
  virtual Result<DeviceRegion> share(int device, const Group& group, std::size_t bytes) = 0;
  // Progress-lock owner: waits until what was begun has been done here, or for the abort. When that
  // is so on all members, none of them uses a region any more, and it can be released; what is not
  // goes when nothing is under way at the end.
  virtual Status drain() = 0;
  virtual void release(const DeviceRegion& region) = 0;
  // Behind what is under way: fills with what changes no result (a rank that has joined).
  virtual Status fill_identity(Dtype dtype, ReduceOp op, void* out, std::size_t count) = 0;

  // Any thread.
  virtual DeviceTimes times() = 0;
  // Nothing of what was begun is under way any more: not here, nor at peers in memory of this rank.
  // Any thread; asked again and again when the engine ends in peace, before abandon().
  virtual bool idle() = 0;
  // The engine has ended: whatever waits on a device for other ranks is let go, with whatever data
  // there is. Any thread; returns soon. Nothing is begun afterwards.
  virtual void abandon() = 0;
};

struct AcceleratorOptions {
  std::string operations =
      "auto";                 // auto | ring | nccl | prefer-nccl | staged (HVD_GPU_OPERATIONS)
  std::string ring = "auto";  // auto | slices | persistent (HVD_GPU_RING)
  std::string driver;         // file of the driver; empty: the system's. Tests give a fake.
  std::size_t arena_bytes = std::size_t{64} << 20U;  // device memory of this rank that peers map
  double self_test_seconds = 20;  // that an operation may take when a way between devices is tried
};

constexpr std::uint32_t kAcceleratorVersion = 8;
constexpr const char* kCudaPlugin = "libhvd_cuda.so";
constexpr const char* kCudaSymbol = "hvd_cuda_open";

// What the plugin exports under kCudaSymbol. Null, and why: there is no driver, no device, or it is
// of another version. cpu: what carries out operations on host memory (staged copies).
using OpenAccelerator = Accelerator* (*)(std::uint32_t version, Mesh& mesh, Backend& cpu,
                                         const AcceleratorOptions& options, Status& why);

}  // namespace hvd
