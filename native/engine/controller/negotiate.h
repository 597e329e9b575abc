// Negotiation: the agreement of the ranks of a set once all of them have requested a name (or have
// joined), or how their requests differ. Pure functions, for rank 0 only, where a rank's number is
// the rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/message/rank_set.h"

namespace hvd {

// The ranks by the device that holds their tensors; empty: all on the host. (The tensors of one
// request are on one device.)
using Whereabouts = std::vector<std::pair<int, RankSet>>;
bool same(const Whereabouts& a, const Whereabouts& b);

// The agreement of all ranks of a set (or the error for all of them), before fusion.
struct Agreed {
  std::shared_ptr<const Request> request;  // of the lowest rank
  Status status;
  std::vector<std::int64_t> sizes;  // as in Response; empty: those of the slot are still valid
  std::vector<int> only;            // receiving ranks; empty: all of the set
  std::int64_t bytes = 0;
  int slot = -1;  // all ranks requested it by this slot
  bool shared = false;
  bool absent = false;  // a rank has joined instead of requesting it
  bool keep = false;    // worth a cache slot
  bool queues = false;  // waits for the operations in flight on rank 0's devices
  Whereabouts devices;
};

Agreed agree(const Entry& entry, const RankSet& joined);

// The agreement of all `size` ranks of the engine if each of them makes this request. nullopt: they
// do not agree, or the request changes more than tensors.
std::optional<Response> agreed_by_all(const Request& request, int size);

// An error for operations that cannot run while a rank has joined, which contributes no data.
Status with_joined(Kind kind);

// Consistency checks of the ranks' requests: Horovod's checks in Horovod's order and wording,
// followed by what each rank requested; the first difference wins.

// Compare the requests of all ranks for one name. Status.rank: the first rank that differs from the
// lowest one.
Status compare(Variants variants);

std::string ranks_text(const std::vector<int>& ranks);  // "rank 3", "ranks 0-2, 5"

}  // namespace hvd
