// Tree node: the requests that a rank other than rank 0 sends to its parent. Requests that all
// members of its subtree have made are sent as one. Requests of only some members are sent once
// they have waited for half of the time after which rank 0 warns of a stall. A leaf is a subtree of
// one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/controller/rank_state.h"
#include "engine/controller/role.h"
#include "engine/controller/stall.h"
#include "engine/message/wire.h"

namespace hvd {

class TreeNode final : public Role {
 public:
  // patience_ns: how long an incomplete request is held back; negative: forever.
  TreeNode(RankState& state, std::int64_t patience_ns) : state_(state), patience_ns_(patience_ns) {}

  void on_request(Entry& entry, std::int64_t now_ns) override;
  // Joins, departures and prompts are forwarded at once.
  void join(const Request& request, const std::vector<int>& ranks, std::int64_t now_ns) override;
  void leave(int rank) override;
  void park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) override;
  Status blocked(Request request, const std::vector<int>& ranks, std::int64_t now_ns) override;

  void work(std::int64_t now_ns) override;
  std::int64_t due_in(std::int64_t now_ns) const override;

  bool has_requests() const override { return !up_.empty(); }
  std::string take_requests() override;
  void send_notice(Entry& entry, std::uint64_t position) override;
  void send_closed(std::uint64_t position) override { up_.position = position; }
  void again(int slot, std::uint64_t version) override;
  void learned(const Response& response, std::int64_t now_ns) override;

 private:
  void send(Entry& entry);
  void send_all();
  void keep_nothing();

  RankState& state_;
  std::int64_t patience_ns_;
  bool keeps_ = true;
  StallTimer stall_timer_;
  RequestList up_;
};

}  // namespace hvd
