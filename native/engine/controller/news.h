// Input and output of a controller: its options, its messages, and the operations that its rank
// executes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/message/request.h"
#include "engine/tune/autotune.h"
#include "transport/mesh/mesh.h"

namespace hvd {

struct ControllerOptions {
  std::int64_t fusion_threshold = 134'217'728;  // bytes; 0: no fusion
  std::int64_t cycle_ns = 0;          // longest time that a small tensor waits to be fused
  std::size_t cache_capacity = 1024;  // names; 0: no cache
  bool group_fusion = true;           // groups may be fused with others
  // Minimum time that an operation on a device may wait for those in flight there (fusion.h).
  std::int64_t hold_ns = 20'000'000;
  std::int64_t stall_warning_ns = std::int64_t{60} * 1'000'000'000;  // 0: no stall check
  std::int64_t stall_shutdown_ns = 0;  // fail operations that wait longer; 0: never
  int fanout = kDefaultFanout;
  bool record_ready = true;  // fill News::ready
  TunerOptions tuner;
};

// Operations in flight on rank 0's devices.
struct InFlight {
  std::size_t operations = 0;  // enqueued on a device, or about to be, and not known to be done
  std::int64_t since_ns = 0;   // the oldest of them
  bool awaited = false;        // a user thread waits for one that is not enqueued on its device yet
  // Rank 0's device time-slices between several processes (no MPS).
  bool in_turns = false;
};

struct OutgoingMessage {
  int to = 0;
  std::string bytes;
};

// A rank has requested a name (recorded by rank 0, for the timeline).
struct Ready {
  int rank;
  Kind kind;
  std::string name;
  std::int64_t at_ns;
};

// In the agenda:
//   a LEAVE whose status is not ok stops this rank with that status: the rank itself, rank 0, or a
//   rank on its path to rank 0 has left
//   an operation that this rank has not requested is executed, too, because the rank has joined
//   (Response::absent, or nothing to move)
//   failed operations name only requests that this rank has made
struct News {
  std::vector<OutgoingMessage> outgoing;  // in order per receiver
  std::vector<Response> agenda;           // to be executed in this order, before later agendas
  std::size_t cached = 0;                 // responses of the agenda that arrived as cache slots
  std::vector<std::string> warnings;      // for the log
  std::vector<Ready> ready;
};

struct Waiting {
  std::string name;
  Kind kind;
  int set;
  std::int64_t since_ns;
  std::vector<int> missing;
  std::vector<int> requested;
};

}  // namespace hvd
