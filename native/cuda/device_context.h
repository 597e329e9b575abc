// The devices of a process and its groups' backends. They outlive the engine until no work waits in
// a device's queue: a backend must not be destroyed while the queue uses its memory, and the queue
// must not wait for a rank that has exited.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "collective/backend/backend.h"
#include "cuda/device/device.h"
#include "cuda/group_init.h"

namespace hvd::cuda {

// Serialising proxy between the engine and the backend of the current operation: one
// call at a time, and none after the proxy is closed.

class SerialisingProxy final : public Backend {
 public:
  // Progress-lock owner: the target of the following calls.
  void open_to(Backend* backend) { backend_ = backend; }
  // Any thread. After it returns, no call is active, and later ones are refused.
  void close();
  // Held during a call.
  Mutex& mutex() RETURN_CAPABILITY(mutex_) { return mutex_; }

  Status allreduce(const Group& group, const std::vector<Operand>& operands,
                   const Reduction& reduction) override;
  Status allreduce_shared(const Group& group, const std::vector<Operand>& operands,
                          const std::vector<std::ptrdiff_t>& offsets,
                          const Reduction& reduction) override;
  Status broadcast(const Group& group, const std::vector<Operand>& operands,
                   int group_root) override;
  Status allgather(const Group& group, const std::vector<Gather>& tensors) override;
  Status alltoall(const Group& group, const Exchange& exchange) override;
  Status reducescatter(const Group& group, const std::vector<Scatter>& tensors,
                       const Reduction& reduction) override;
  const char* last_algorithm() const override { return backend_->last_algorithm(); }

 private:
  template <typename Call>
  Status pass(const Call& call);

  Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
  Backend* backend_ = nullptr;  // used by the progress-lock owner
};

// A group's agreement.
struct DeviceCommunicator {
  std::shared_ptr<Device> home;  // device of its backend
  std::unique_ptr<DeviceBackend> backend;
};

class DeviceContext : public std::enable_shared_from_this<DeviceContext> {
 public:
  DeviceContext(const Driver& driver, int rank, int local_rank);

  const Driver& driver() const { return driver_; }
  // Any thread; opened by the first call. kAnyDevice: the first opened device, or this rank's
  // default.
  Result<std::shared_ptr<Device>> device(int number);

  // Progress-lock owner.
  DeviceCommunicator* find(const Group& group) const { return communicators_.find(group); }
  DeviceCommunicator* add(const Group& group, DeviceCommunicator communicator);
  SerialisingProxy& proxy() { return proxy_; }
  // Memory that queues may use.
  void keep(const DeviceRegion& region);
  void forget(const DeviceRegion& region);
  // Wait until the devices have completed their work, or for the abort.
  Status drain(const Abort& abort);

  // Any thread. True if all work is done. The first call finalises every backend.
  bool finalized();
  // Any thread. Close the proxy and wait briefly for the devices, while a thread releases their
  // waits until they are idle, however long that takes. Later calls do nothing.
  void abandon();
  // The same, by the owner's destructor: detaches the thread if it has not ended.
  void leave();

 private:
  Result<std::shared_ptr<Device>> open(int number) REQUIRES(mutex_);
  std::vector<std::shared_ptr<Device>> devices();
  bool idle();
  void finalize();
  void abort_waits();
  void part();
  void drain_all();
  bool release_waits();
  bool try_drain();

  const Driver& driver_;
  const int rank_, local_rank_;
  SerialisingProxy proxy_;
  Mutex mutex_;
  ConditionVariable over_;
  std::thread end_;  // started by the first abandon()
  std::vector<std::shared_ptr<Device>> devices_ GUARDED_BY(mutex_);  // in the order of opening
  // Changed with both mutexes held: mutex_, proxy_'s.
  GroupRegistry<DeviceCommunicator> communicators_;
  std::vector<DeviceRegion> regions_ GUARDED_BY(mutex_);
  bool settling_ GUARDED_BY(mutex_) = false;
  bool abandoned_ GUARDED_BY(mutex_) = false;
  bool drained_ GUARDED_BY(mutex_) = false;
};

}  // namespace hvd::cuda
