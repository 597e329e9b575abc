// The agreement of all ranks on what to do next, as a pure state machine, one per rank: requests of
// this rank's user, messages of other ranks and the time go in; messages, and what this rank is to
// do next, come out. It knows no thread, no channel and no tensor, so the code that ships runs as
// it is in tests and in the simulator with thousands of ranks.
//
// Words.
//   tree     rank 0 decides; other ranks hand what their subtree asks for up to their parent
//            (transport/mesh/tree.h), and what rank 0 decided down to their children
//   cache    what was agreed on before has a number; a rank that asks for it again sends one bit, a
//            response is a number (response_cache.h)
//   stall    a request that some ranks of its set have made and others have not, for too long
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/message/request.h"
#include "engine/tune/autotune.h"
#include "transport/mesh/tree.h"

namespace hvd {

struct ControllerOptions {
  std::int64_t fusion_threshold = 134'217'728;  // bytes; 0: no fusion
  std::int64_t cycle_ns = 0;          // the longest time a small tensor may wait for company
  std::size_t cache_capacity = 1024;  // names; 0: no cache
  bool group_fusion = true;           // groups may be fused with others
  std::int64_t stall_warning_ns = std::int64_t{60} * 1'000'000'000;  // 0: no stall check
  std::int64_t stall_shutdown_ns = 0;  // fail what waits longer; 0: never
  int fanout = kDefaultFanout;
  bool note_ready = true;  // News::ready is wanted
  TunerOptions tuner;
};

struct OutgoingMessage {
  int to = 0;
  std::string bytes;
};

// A rank has asked for a name (rank 0 knows when; for the timeline).
struct Ready {
  int rank;
  Kind kind;
  std::string name;
  std::int64_t at_ns;
};

// In the agenda:
//   a LEAVE whose status is not ok ends this rank with that status: the rank itself, rank 0, or one
//   on its way to rank 0 has left
//   an operation that this rank has not asked for is carried out all the same: it has joined
//   (Response::absent, or nothing to move)
//   what fails names only requests that this rank has made
struct News {
  std::vector<OutgoingMessage> outgoing;  // in order per receiver
  std::vector<Response> agenda;       // to be carried out in this order, before what comes later
  std::size_t cached = 0;             // responses of the agenda that came as numbers
  std::vector<std::string> warnings;  // for the log
  std::vector<Ready> ready;
};

struct Waiting {
  std::string name;
  Kind kind;
  int set;
  std::int64_t since_ns;
  std::vector<int> missing;
  std::vector<int> asked;
};

class Controller {
 public:
  Controller(int rank, int size, const ControllerOptions& options);
  ~Controller();

  void ask(Request request, std::int64_t now_ns);
  // A message that is none is a Status that names the sender.
  Status hear(int from, const std::string& bytes, std::int64_t now_ns);
  // The peer said goodbye without asking to leave: it could not wait for its turn.
  void gone(int peer, std::int64_t now_ns);
  // An operation of so many bytes has been carried out (for autotune).
  void carried_out(std::int64_t bytes, std::int64_t now_ns);

  News take(std::int64_t now_ns);
  // How long until take() must be called though nothing happens; negative: for ever.
  std::int64_t due_in(std::int64_t now_ns) const;
  // Nobody of this rank's subtree waits for anybody, as far as this rank knows.
  bool idle() const;
  // What this rank knows of missing ranks: rank 0 of all, others of their subtree.
  std::vector<Waiting> waiting() const;
  // The ranks of a set; empty: there is none of this id.
  std::vector<int> ranks_of(int set) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
