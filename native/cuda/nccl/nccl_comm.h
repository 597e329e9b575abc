// A communicator of NCCL that nobody hangs in.
//   settled   what was asked of NCCL has been given to the stream; until then (ncclInProgress) NCCL
//             is asked again and again, because it has no way to wait that an abort would end
//   close     the orderly end: NCCL waits until no member uses another's memory
//   abort     the other end: what is under way on the device is let go
// Either end may block inside NCCL, so a thread of its own does it; who destroys the communicator
// waits for that thread for a while, then leaves it.
//
// A failure while the device works on an operation (a broken network) shows in
// ncclCommGetAsyncError only. A thread asks for it while an operation is under way, and tells all
// ranks; not on self-test, where somebody waits for the operation and asks.
//
// NCCL wants one caller at a time: the mutex is held around its calls, none of which waits. After
// `ended` is set nobody but the ending thread calls, and nobody looks at the mesh any more.
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
  // Begins to build it; it is there when settle() says so. Progress-lock owner only, as are
  // group(), settle() and the end of its life.
  Communicator(const Nccl& nccl, std::shared_ptr<Device> device, Mesh& mesh);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Status begin(const NcclId& id, int size, int group_rank);
  Status settle(const std::string& what, const Deadline& deadline);
  // Gives the calls to the stream as one group; when it returns, they are there.
  Status group(const std::string& what, const NcclCalls& calls);
  NcclHandle handle() const { return shared_->handle; }
  // As of a DeviceBackend.
  void set_self_test(double seconds) { self_test_seconds_ = seconds; }
  Status health();

  // Idempotent, returns at once. Any thread.
  Status abort();

 private:
  // With the thread that ends it.
  struct Shared {
    Mutex mutex;
    ConditionVariable changed;
    NcclHandle handle = nullptr;           // set once, by begin()
    bool ended GUARDED_BY(mutex) = false;  // an end has begun
    bool over GUARDED_BY(mutex) = false;   // ... and is done

    void end();
  };

  Status end(bool orderly);
  Status explain(NcclResult result, const std::string& what) const;
  Status blame(NcclResult result, const std::string& what) const;
  Status gone(const std::string& what) const;
  Status watch_over_it();
  void watch();
  NcclResult look() REQUIRES(shared_->mutex);
  NcclResult error() const REQUIRES(shared_->mutex);

  const Nccl& nccl_;
  std::shared_ptr<Device> device_;
  Mesh& mesh_;
  std::shared_ptr<Shared> shared_;

  double self_test_seconds_ = 0;
  std::thread watch_;
  // Behind the last operation, while that is under way.
  Device::Event last_ GUARDED_BY(shared_->mutex);
  bool leaving_ GUARDED_BY(shared_->mutex) = false;
};

}  // namespace hvd::cuda
