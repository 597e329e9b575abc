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
#include "cuda/serialising_proxy.h"

namespace hvd::cuda {

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
