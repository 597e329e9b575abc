// Everything one rank holds towards its peers: data links (both ways, to every peer), a control
// channel for negotiation, and the watch that learns of a peer's death, abort or shutdown while
// everybody else is busy or blocked.
//   data link    link.h; used by collectives only, from the coordinator thread only
//   control      whole messages, reliable, in order per pair; between rank 0 and each other rank
//   watch        one thread ("hvd-watch"): hang-up of a peer -> abort kRankDied within
//   milliseconds; abort messages of peers;
//                a peer that said goodbye (leave()) is not a death
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/abort.h"
#include "base/status.h"
#include "transport/bootstrap.h"
#include "transport/link.h"

namespace hvd {

struct Topology {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host
  int cross_rank = 0, cross_size = 1;  // among the hosts that have this local_rank
  bool homogeneous = true;             // every host has the same number of ranks
};

struct MeshOptions {
  std::string transport = "auto";  // auto | shm | tcp : what to use between ranks of one host
  std::string tcp_interface;  // address to listen on; empty: loopback when all ranks share the host
  std::size_t slot_bytes = std::size_t{256} << 10U;
  std::size_t slots = 4;
  double start_timeout_s = 30;
  std::string
      host;  // which host this rank counts to; empty: found out (boot id, network namespace, user)
};

struct ControlMessage {
  int from = -1;  // -1: nothing came (woken or deadline)
  std::string bytes;
};

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual const Topology& topology() const = 0;
  virtual std::string transport_to(int peer) const = 0;  // "shm", "tcp", "local"
  virtual SendLink& to(int peer) = 0;
  virtual RecvLink& from(int peer) = 0;

  // Control channel; coordinator thread only, except wake(), which any thread may call.
  virtual Status send_control(int peer, const std::string& bytes) = 0;
  virtual ControlMessage wait_control(
      std::chrono::nanoseconds longest) = 0;  // also returns on wake() and on abort
  virtual void wake() = 0;

  // Raised by the watch, by a link's I/O error, or by raise_everywhere(). To raise it use
  // raise_everywhere(), which also wakes wait_control(); read it here.
  virtual Abort& abort() = 0;
  // The peer said goodbye, and no abort is raised (that would be the reason). wait_control()
  // returns (from == -1) when it says so; messages it sent before still arrive.
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
std::vector<std::unique_ptr<Mesh>> make_local_meshes(int size, const MeshOptions& options);

}  // namespace hvd
