// Mesh: one rank's connections to its peers: data links (both directions, to every peer), a control
// channel for negotiation, and the failure detector that notices a peer's death, abort or shutdown
// while all other threads are busy or blocked.
//   owner        of the progress lock: the only thread of this process that may use links, control
//                and doorbell at present (doorbell.h); other threads ring the doorbell
//   data link    link.h; used by collectives only, from the progress-lock owner only
//   control      whole messages, reliable, in order per pair; along the edges of the negotiation's
//                tree
//   watch        one thread ("hvd-watch"): hang-up of a peer -> abort kRankDied within
//                milliseconds; abort messages of peers; a peer that has sent a goodbye (leave()) is
//                not dead
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/abort.h"
#include "base/status.h"
#include "base/visible.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/link/doorbell.h"
#include "transport/link/link.h"
#include "transport/shm/fast_path.h"
#include "transport/shm/shared_heap.h"

namespace hvd {

// The tree of the negotiation: rank 0 is the root, every rank has at most `fanout` children. With
// at most fanout + 1 ranks it is a star.
constexpr int kDefaultFanout = 64;

inline int parent_of(int rank, int fanout) { return rank == 0 ? -1 : (rank - 1) / fanout; }

inline std::vector<int> children_of(int rank, int size, int fanout) {
  std::vector<int> children;
  const long long first = static_cast<long long>(rank) * fanout + 1;
  for (long long child = first; child < std::min<long long>(first + fanout, size); ++child) {
    children.push_back(static_cast<int>(child));
  }
  return children;
}

// A rank's number on its host as assigned by the launcher, in the order of its process slots, and
// its host's number among the hosts that have this local_rank.
struct Place {
  int local_rank = 0;
  int cross_rank = 0, cross_size = 1;
};

struct Topology {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host; see MeshOptions::place
  int cross_rank = 0, cross_size = 1;  // among the hosts that have this local_rank
  bool homogeneous = true;             // every host has the same number of ranks
  // The number of every rank's host; hosts are numbered by their first rank.
  std::vector<int> host_of;
};

struct MeshOptions {
  // Transport between ranks: auto (memory on one host, TCP between hosts) | shm (refuses several
  // hosts) | tcp | mpi (the plugin, everywhere).
  std::string transport = "auto";
  std::string tcp_interface;  // address to listen on; empty: loopback when all ranks share the host
  std::size_t slot_bytes = std::size_t{256} << 10U;
  std::size_t slots = 4;
  double start_timeout_s = 30;
  std::string host;  // host id of this rank; empty: detected (boot id, network namespace, user)
  std::optional<Place> place;     // nullopt: local ranks are in the order of ranks
  int fanout = kDefaultFanout;    // of the negotiation's tree
  std::size_t tcp_streams = 1;    // sockets per pair of ranks on different hosts
  std::string secret;             // shared by all ranks; empty: created by rank 0 and distributed
                                  // by the bootstrap if that is safe
  std::size_t heap_bytes = 0;     // address space of the shared heap; 0: as much as the machine's
                                  // memory
  double stop_warning_s = 0.5;    // a stopped (SIGSTOP) peer is reported after this time ...
  double stop_abort_s = 5;        // ... and ends the operation after this time; 0: never
  double net_timeout_s = 30;      // a host that does not answer for this time is lost; 0: never
  double flush_s = 2;             // time limit for sending pending data when a rank leaves
  std::uint32_t first_count = 0;  // for tests: initial value of the rings' counters (they wrap)
  std::string agreement;          // further settings that must be the same on all ranks: lines of
                                  // name=value
};

struct ControlMessage {
  int from = -1;  // -1: no message (woken or deadline)
  std::string bytes;
};

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual const Topology& topology() const = 0;
  virtual std::string transport_to(int peer) const = 0;  // "shm", "tcp", "mpi", "local"
  virtual SendLink& to(int peer) = 0;
  virtual RecvLink& from(int peer) = 0;
  // nullptr unless each rank has a host of its own and there are few ranks.
  virtual EagerLinks* eager() { return nullptr; }

  // Control channel to the parent and the children in the tree; progress-lock owner only. send()
  // never blocks: what does not fit is kept and sent by later calls of send or poll, or by the
  // watch.
  virtual Status send_control(int peer, const std::string& bytes) = 0;
  // The next message, or from == -1 at once. Messages that a peer sent before its goodbye still
  // arrive.
  virtual ControlMessage poll_control() = 0;
  // Rung when a message has arrived, an abort was raised, or a peer has sent a goodbye. Any thread
  // may ring it.
  virtual Doorbell& doorbell() = 0;
  // True with more cores than ranks on this host: polling for a few microseconds before sleep pays
  // off.
  virtual bool may_spin() const = 0;
  // For this rank, progress-lock owner only; nullptr if the ranks do not all share memory.
  virtual std::unique_ptr<FastPath> fast_path() = 0;
  // The data memory of the fast path, if there is one.
  virtual FastPathData fast_path_data() = 0;
  // Memory shared by all ranks of this host; nullptr without it (one rank per host, transport tcp,
  // no address space).
  virtual SharedHeap* heap() = 0;
  // The same with ownership: it may outlive the mesh.
  virtual std::shared_ptr<SharedHeap> heap_holder() = 0;
  // The progress-lock owner is about to wait for peers, or no longer: while it waits, the failure
  // detector checks for stopped peers.
  virtual void attend(bool waiting) = 0;

  // Raised by the failure detector, by a link's I/O error, or by raise_everywhere(). To raise it
  // use raise_everywhere(), which also rings the doorbell; read it here.
  virtual Abort& abort() = 0;
  // The peer has sent a goodbye, and no abort is raised (which would be the reason). The goodbye
  // rings the doorbell; messages that the peer sent before still arrive.
  virtual bool has_left(int peer) const = 0;
  // Send the abort to every peer and raise it here. Any thread; never blocks for long; safe if
  // peers are dead.
  virtual void raise_everywhere(Status cause) = 0;
  // Send a goodbye to every peer: the following hang-up is intended. Peers get kShutdown only if
  // they still wait for this rank.
  virtual void leave() = 0;
};

// Collective over the bootstrap. Chooses per pair: same host -> shared memory (memfd over a unix
// socket), else TCP.
Result<std::unique_ptr<Mesh>> connect_mesh(int rank, int size, Bootstrap& bootstrap,
                                           const MeshOptions& options);

// n ranks as threads of one process: links over plain memory. The meshes share state and may be
// used from n threads.
HVD_VISIBLE std::vector<std::unique_ptr<Mesh>> make_local_meshes(int size,
                                                                 const MeshOptions& options);

}  // namespace hvd
