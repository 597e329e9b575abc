// A communicator of NCCL in which no thread can hang.
//   ready     NCCL has enqueued the requested work on the stream; until then (ncclInProgress) NCCL
//             is polled, because it has no wait that an abort would end
//   close     orderly end: NCCL waits until no member uses another's memory
//   abort     the other end: releases the work in flight on the device
// Both ends may block inside NCCL, so a separate thread runs them. The destructor waits for that
// thread for a while, then detaches it.
//
// A failure while the device executes an operation (a broken network) is reported only by
// ncclCommGetAsyncError. A thread polls it while an operation is in flight and raises the abort;
// not during a self-test, where the waiting code polls it.
//
// NCCL allows one caller at a time: the mutex is held around its calls, none of which blocks. After
// `ended` is set only the ending thread calls it, and the mesh is not used any more.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cuda/device/device.h"
#include "cuda/nccl/nccl.h"
#include "transport/mesh/mesh.h"

namespace hvd::cuda {

using NcclCalls = std::vector<std::function<NcclResult()>>;

class Communicator {
 public:
  // Begin to build it; wait_ready() completes that. Progress-lock owner only, like group(),
  // wait_ready() and the destructor.
  Communicator(const Nccl& nccl, std::shared_ptr<Device> device, Mesh& mesh);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Status begin(const NcclId& id, int size, int group_rank);
  Status wait_ready(const std::string& what, const Deadline& deadline);
  // Enqueue the calls on the stream as one group; they are enqueued when it returns.
  Status group(const std::string& what, const NcclCalls& calls);
  NcclHandle handle() const { return shared_->handle; }
  // See DeviceBackend.
  void set_self_test(double seconds) { self_test_seconds_ = seconds; }
  Status health();

  // Idempotent, returns at once. Any thread.
  Status abort();

 private:
  // Shared with the ending thread.
  struct Shared {
    Mutex mutex;
    ConditionVariable changed;
    NcclHandle handle = nullptr;           // set once, by begin()
    bool ended GUARDED_BY(mutex) = false;  // ending has begun
    bool over GUARDED_BY(mutex) = false;   // ... and is complete

    void end();
  };

  Status end(bool orderly);
  Status explain(NcclResult result, const std::string& what) const;
  Status blame(NcclResult result, const std::string& what) const;
  Status gone(const std::string& what) const;
  Status watch_over_it();
  void watch();
  NcclResult check_async() REQUIRES(shared_->mutex);
  NcclResult error() const REQUIRES(shared_->mutex);

  const Nccl& nccl_;
  std::shared_ptr<Device> device_;
  Mesh& mesh_;
  std::shared_ptr<Shared> shared_;

  double self_test_seconds_ = 0;
  std::thread watch_;
  // After the last operation, while it is in flight.
  Device::Event last_ GUARDED_BY(shared_->mutex);
  bool leaving_ GUARDED_BY(shared_->mutex) = false;
};

}  // namespace hvd::cuda
