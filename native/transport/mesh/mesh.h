// Everything one rank holds towards its peers: data links (both ways, to every peer), a control
// channel for negotiation, and the failure detector that learns of a peer's death, abort or
// shutdown while everybody else is busy or blocked.
//   progress-lock owner  the one thread of this process that may use links, control and doorbell at
//                present (doorbell.h); others ring the doorbell
//   data link    link.h; used by collectives only, from the progress-lock owner only
//   control      whole messages, reliable, in order per pair; along the edges of the negotiation's
//                tree (tree.h)
//   watch        one thread ("hvd-watch"): hang-up of a peer -> abort kRankDied within
//                milliseconds; abort messages of peers; a peer that said goodbye (leave()) is not a
//                death
#pragma once

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
#include "transport/link/eager_links.h"
#include "transport/link/link.h"
#include "transport/mesh/tree.h"
#include "transport/shm/fast_path.h"
#include "transport/shm/shared_heap.h"

namespace hvd {

// A rank's number on its host as whoever starts the ranks has it, by the slots of their processes,
// and its host's number among those that have this local_rank.
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
  // What to use between ranks: auto (memory on one host, TCP between hosts) | shm (refuses several
  // hosts) | tcp | mpi (the plugin, everywhere).
  std::string transport = "auto";
  std::string tcp_interface;  // address to listen on; empty: loopback when all ranks share the host
  std::size_t slot_bytes = std::size_t{256} << 10U;
  std::size_t slots = 4;
  double start_timeout_s = 30;
  std::string
      host;  // which host this rank counts to; empty: found out (boot id, network namespace, user)
  std::optional<Place> place;     // nothing: local ranks count in the order of ranks
  int fanout = kDefaultFanout;    // of the negotiation's tree
  std::size_t tcp_streams = 1;    // sockets per pair of ranks on different hosts
  std::string secret;             // shared by all ranks; empty: made by rank 0 and passed on by
                                  // the bootstrap where that is safe
  std::size_t heap_bytes = 0;     // address space of the shared heap; 0: as much as the machine's
                                  // memory
  double stop_warning_s = 0.5;    // a stopped (SIGSTOP) peer is named after so long ...
  double stop_abort_s = 5;        // ... and ends the operation after so long; 0: never
  double net_timeout_s = 30;      // another host that answers nothing for so long is lost; 0: never
  double flush_s = 2;             // what is not sent yet has so long to go out when a rank leaves
  std::uint32_t first_count = 0;  // tests: where the counters of rings start (they wrap around)
  std::string agreement;          // further settings that must be the same on all ranks: lines of
                                  // name=value
};

struct ControlMessage {
  int from = -1;  // -1: nothing came (woken or deadline)
  std::string bytes;
};

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual const Topology& topology() const = 0;
  virtual std::string transport_to(int peer) const = 0;  // "shm", "tcp", "mpi", "local"
  virtual SendLink& to(int peer) = 0;
  virtual RecvLink& from(int peer) = 0;
  // Where each rank has a host of its own, and there are few of them; else null.
  virtual EagerLinks* eager() { return nullptr; }

  // Control channel, to the parent and the children in the tree; progress-lock owner only. send
  // never waits: what does not fit is kept and goes out with later calls of send or poll, or by the
  // watch.
  virtual Status send_control(int peer, const std::string& bytes) = 0;
  // The next message, or from == -1 at once. Messages a peer sent before its goodbye still come.
  virtual ControlMessage poll_control() = 0;
  // Rung when a message has come, an abort was raised, a peer has said goodbye. Any thread may
  // ring.
  virtual Doorbell& doorbell() = 0;
  // More cores than ranks on this host: waiting a few microseconds by looking is worth while.
  virtual bool may_spin() const = 0;
  // For this rank, progress-lock owner only; null where the ranks do not all share memory.
  virtual std::unique_ptr<FastPath> fast_path() = 0;
  // Beside it, where there is one.
  virtual FastPathData fast_path_data() = 0;
  // Memory that all ranks of this host see; null where there is none (one rank per host, transport
  // tcp, no address space).
  virtual SharedHeap* heap() = 0;
  // The same, to keep: it may outlive the mesh.
  virtual std::shared_ptr<SharedHeap> heap_holder() = 0;
  // The progress-lock owner is about to wait for others, or no longer: while somebody waits, the
  // failure detector looks after stopped peers.
  virtual void attend(bool waiting) = 0;

  // Raised by the failure detector, by a link's I/O error, or by raise_everywhere(). To raise it
  // use raise_everywhere(), which also rings the doorbell; read it here.
  virtual Abort& abort() = 0;
  // The peer said goodbye, and no abort is raised (that would be the reason). The doorbell is rung
  // when it says so; messages it sent before still arrive.
  virtual bool has_left(int peer) const = 0;
  // Tell every peer, and raise here. Any thread; never blocks for long; safe when peers are dead.
  virtual void raise_everywhere(Status cause) = 0;
  // Goodbye: tell every peer that the coming hang-up is intended. Peers see kShutdown only if they
  // still wait for us.
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
