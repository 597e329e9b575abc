// Negotiation: what the ranks of a set have agreed on, once all of them have asked for a name (or
// have joined). Pure; rank 0 only, where a rank's number is the rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/message/rank_set.h"

namespace hvd {

// Which ranks have their tensors on which of their devices; empty: all on the host. (The tensors of
// one request are on one device.)
using Whereabouts = std::vector<std::pair<int, RankSet>>;
bool same(const Whereabouts& a, const Whereabouts& b);

// What all ranks of a set agree on (or are told to fail), before fusion.
struct Agreed {
  std::shared_ptr<const Request> request;  // the lowest rank's
  Status status;
  std::vector<std::int64_t> sizes;  // as in Response; none when the slot's still hold
  std::vector<int> only;            // ranks it is for; empty: all of the set
  std::int64_t bytes = 0;
  int slot = -1;  // everybody has asked by this slot
  bool shared = false;
  bool absent = false;  // somebody has joined instead of asking
  bool keep = false;    // worth a slot
  bool queues = false;  // behind what is in flight on rank 0's devices
  Whereabouts devices;
};

Agreed agree(const Entry& entry, const RankSet& joined);

// What all `size` ranks of the engine agree on when each asks for just this. Nothing: they do not,
// or it changes more than tensors.
std::optional<Response> agreed_by_all(const Request& request, int size);

// Somebody who has joined takes part with nothing of his own: not every operation can.
Status with_joined(Kind kind);

}  // namespace hvd
