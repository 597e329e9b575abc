// What a rank other than rank 0 hands up to its parent: what all of its subtree's members of a set
// ask for, as one; and what only some of them ask for, once that has waited for half of the time
// after which rank 0 warns of it. A leaf is a subtree of one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/controller/rank_state.h"
#include "engine/controller/stall.h"
#include "engine/message/wire.h"

namespace hvd {

class TreeNode {
 public:
  // patience_ns: how long an incomplete request is kept; negative: for ever.
  TreeNode(RankState& state, std::int64_t patience_ns) : state_(state), patience_ns_(patience_ns) {}

  // Somebody has asked.
  void asked(Entry& entry, std::int64_t now_ns);
  // Joins and departures are not collected.
  void join(const Request& request, const std::vector<int>& ranks, std::int64_t now_ns);
  void leave(const std::vector<int>& ranks);
  // Rank 0 is to know, and nobody is answered.
  void pass_on(Request request, const std::vector<int>& ranks);
  // Also what others of the subtree have not asked for yet.
  void send_all();
  // After a departure nothing is kept: rank 0 will fail it.
  void keep_nothing();
  // The parent does not know this slot any more.
  void again(int slot, std::uint64_t version);
  void check(std::int64_t now_ns);
  // The requests to be sent; empty: none.
  std::string take();
  bool has_requests() const { return !up_.empty(); }

  std::int64_t due_in(std::int64_t now_ns) const;

 private:
  bool complete(const Entry& entry) const;
  void send(Entry& entry);

  RankState& state_;
  std::int64_t patience_ns_;
  bool keeps_ = true;
  StallTimer stall_timer_;
  RequestList up_;
};

}  // namespace hvd
