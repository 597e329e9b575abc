// The devices of a process and the backends that its groups have there. At the end of the engine
// they outlive it until nothing waits in a device's queue any more: a backend whose memory the
// queue still uses must not go, and the queue must not wait for a rank that is no more.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "collective/backend/group.h"
#include "cuda/device/device.h"
#include "cuda/group_init.h"
#include "cuda/serialising_proxy.h"

namespace hvd::cuda {

// What a group has agreed on when it met.
struct DeviceCommunicator {
  std::shared_ptr<Device> home;  // on which its backend is
  std::unique_ptr<DeviceBackend> backend;
};

class DeviceContext : public std::enable_shared_from_this<DeviceContext> {
 public:
  DeviceContext(const Driver& driver, int rank, int local_rank);

  const Driver& driver() const { return driver_; }
  // Any thread; opened the first time. kAnyDevice: the first that was opened, or this rank's share.
  Result<std::shared_ptr<Device>> device(int number);

  // Progress-lock owner.
  DeviceCommunicator* find(const Group& group) const { return communicators_.find(group); }
  DeviceCommunicator* add(const Group& group, DeviceCommunicator communicator);
  SerialisingProxy& proxy() { return proxy_; }
  // Memory that queues may use.
  void keep(const DeviceRegion& region);
  void forget(const DeviceRegion& region);
  // Until the devices have done what they were given, or for the abort.
  Status drain(const Abort& abort);

  // Any thread. Tells every backend the first time that no operation comes any more.
  bool settled();
  // Any thread. Closes the proxy; waits a moment for the devices, which a thread lets go until they
  // are idle, however long that takes. Later calls do nothing.
  void abandon();
  // The same, by the owner who goes: the thread is left alone where it has not ended.
  void leave();

 private:
  Result<std::shared_ptr<Device>> open(int number) REQUIRES(mutex_);
  std::vector<std::shared_ptr<Device>> devices();
  bool idle();
  void settle();
  void abort_waits();
  void part();
  void drain_all();
  bool look_out();
  bool try_drain();

  const Driver& driver_;
  const int rank_, local_rank_;
  SerialisingProxy proxy_;
  Mutex mutex_;
  ConditionVariable over_;
  std::thread end_;                                                  // who abandons first starts it
  std::vector<std::shared_ptr<Device>> devices_ GUARDED_BY(mutex_);  // as they were opened
  // Changed with both mutexes held: mutex_, proxy_'s.
  GroupRegistry<DeviceCommunicator> communicators_;
  std::vector<DeviceRegion> regions_ GUARDED_BY(mutex_);
  bool settling_ GUARDED_BY(mutex_) = false;
  bool abandoned_ GUARDED_BY(mutex_) = false;
  bool drained_ GUARDED_BY(mutex_) = false;
};

}  // namespace hvd::cuda
