// Data links over MPI's messages, for fabrics that MPI knows and sockets do not. Every slot is a
// message; receives are posted ahead, one per slot.
//   turn      MPI has nothing to sleep on: a waiting thread polls and never blocks within MPI, so
//             that a death reported by the failure detector ends every wait
//   hvd-mpi   the thread that progresses pending sends while no thread waits; sleeps otherwise
//   end       a last message with a separate tag: the number of slots
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/abort.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/link/link.h"
#include "transport/mpi/mpi_plugin.h"

namespace hvd {

struct MpiShape {
  int rank = 0, size = 1;
  std::size_t slot_bytes = 0, slots = 0;
  double flush_s = 0;    // MeshOptions
  double failure_s = 5;  // time that the failure detector may need to report a death
};

class MpiLinks {
 public:
  // Collective. Fails on all ranks, with the same message, if one of them cannot use MPI. failed:
  // called if its thread fails. verbs: nullptr for the plugin's.
  static Result<std::unique_ptr<MpiLinks>> open(const MpiShape& shape, Bootstrap& bootstrap,
                                                const Abort& abort, Failed failed,
                                                Deadline deadline, const MpiVerbs* verbs = nullptr);
  ~MpiLinks();  // sends pending data for at most flush_s
  MpiLinks(const MpiLinks&) = delete;
  MpiLinks& operator=(const MpiLinks&) = delete;

  // Before the first use: the flag that is set when the peer has sent a goodbye.
  void left(int peer, const std::atomic<bool>* mark);
  // Valid for the lifetime of this object.
  std::unique_ptr<SendLink> send_link(int peer);
  std::unique_ptr<RecvLink> recv_link(int peer);

  struct Peer;
  std::size_t slot_bytes() const { return shape_.slot_bytes; }
  std::size_t slots() const { return shape_.slots; }
  Result<Slot> acquire(Peer& peer, const Abort& abort);
  void publish(Peer& peer, std::size_t bytes);
  Result<Slot> peek(Peer& peer, const Abort& abort);
  void release(Peer& peer);

 private:
  enum class Direction { kSend, kReceive };

  MpiLinks(const MpiShape& shape, const Abort& abort, Failed failed, const MpiVerbs* verbs);
  Status meet(Bootstrap& bootstrap, Deadline deadline, const Status& loaded);
  Status start();
  Result<Slot> wait(Peer& peer, Direction direction, const Abort& abort);
  Slot attempt(Peer& peer, Direction direction);
  Status post_all();
  void post(Peer& peer, std::size_t place) REQUIRES(mutex_);
  void move_on(Peer& peer) REQUIRES(mutex_);
  static void fail(Peer& peer);  // mutex held
  std::optional<Clock::time_point> failed_at(const Peer& peer) const;
  bool pending() const REQUIRES(mutex_);
  void send_end() REQUIRES(mutex_);
  void cancel_receives();
  void run();

  MpiShape shape_;
  const std::chrono::duration<double> failure_grace_;
  const Abort& abort_;
  const Failed failed_;
  const MpiVerbs* verbs_;
  int tag_ = 0;
  std::vector<int> world_;                    // the ranks' numbers in MPI's world
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr for this one
  mutable Mutex mutex_;                       // serialises all calls of MPI
  ConditionVariable work_;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::atomic<int> waiting_{0};
  std::thread thread_;
};

}  // namespace hvd
