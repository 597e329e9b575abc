// The devices of a process and the backends that its teams have there. At the end of the engine
// they outlive it until nothing waits in a device's queue any more: a backend whose memory the
// queue still uses must not go, and the queue must not wait for a rank that is no more.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "collective/backend/group.h"
#include "cuda/device/device.h"
#include "cuda/meeting.h"
#include "cuda/serialising_proxy.h"

namespace hvd::cuda {

// A team as it has met.
struct Table {
  Team team;
  std::shared_ptr<Device> home;  // on which its backend is
  std::unique_ptr<DeviceBackend> backend;
};

class Household : public std::enable_shared_from_this<Household> {
 public:
  Household(const Driver& driver, int rank, int local_rank);

  const Driver& driver() const { return driver_; }
  // Any thread; opened the first time. kAnyDevice: the first that was opened, or this rank's share.
  Result<std::shared_ptr<Device>> device(int number);

  // Turn-holder.
  Table* find(const Team& team);
  Table* add(Table table);
  Gate& gate() { return gate_; }
  // Memory that queues may use.
  void keep(const DeviceRegion& region);
  void forget(const DeviceRegion& region);
  // Until the devices have done what they were given, or for the abort.
  Status drain(const Abort& abort);

  // Any thread. Tells every backend the first time that no operation comes any more.
  bool settled();
  // Any thread. Closes the gate; waits a moment for the devices, which a thread lets go until they
  // are idle, however long that takes. Later calls do nothing.
  void abandon();
  // The same, by the owner who goes: the thread is left alone where it has not ended.
  void leave();

 private:
  Result<std::shared_ptr<Device>> open(int number);
  std::vector<std::shared_ptr<Device>> devices();
  bool idle();
  void settle();
  void let_go();
  void part();
  void see_out();
  bool look_out();
  bool seen_out();

  const Driver& driver_;
  const int rank_, local_rank_;
  Gate gate_;
  std::mutex mutex_;
  std::condition_variable over_;
  std::thread end_;                               // who abandons first starts it
  std::vector<std::shared_ptr<Device>> devices_;  // as they were opened; guarded by mutex_
  std::vector<std::unique_ptr<Table>> tables_;    // changed with both mutexes held: mutex_, gate_'s
  std::vector<DeviceRegion> regions_;             // guarded by mutex_
  bool settling_ = false, abandoned_ = false, seen_out_ = false;  // guarded by mutex_
};

}  // namespace hvd::cuda
