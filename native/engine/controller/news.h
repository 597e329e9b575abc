// Input and output of a controller: its options, messages, and what its rank is
// to do next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/message/request.h"
#include "engine/tune/autotune.h"
#include "transport/mesh/tree.h"

namespace hvd {

struct ControllerOptions {
  std::int64_t fusion_threshold = 134'217'728;  // bytes; 0: no fusion
  std::int64_t cycle_ns = 0;          // the longest time a small tensor may wait for company
  std::size_t cache_capacity = 1024;  // names; 0: no cache
  bool group_fusion = true;           // groups may be fused with others
  // How long one on a device may wait at least for those in flight there (fusion.h).
  std::int64_t hold_ns = 20'000'000;
  std::int64_t stall_warning_ns = std::int64_t{60} * 1'000'000'000;  // 0: no stall check
  std::int64_t stall_shutdown_ns = 0;  // fail what waits longer; 0: never
  int fanout = kDefaultFanout;
  bool note_ready = true;  // News::ready is wanted
  TunerOptions tuner;
};

// Operations of rank 0's devices, as it knows them.
struct InFlight {
  std::size_t operations = 0;  // given to a device, or next to be, and not known to be done
  std::int64_t since_ns = 0;   // the oldest of them
  bool awaited = false;        // a user thread waits for one that has not been given to its device
  // Rank 0's device runs the work of several processes by turns, a time slice each (no MPS).
  bool in_turns = false;
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

}  // namespace hvd
