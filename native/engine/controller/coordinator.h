// Rank 0: detects when all ranks of a set have requested an operation, and decides what is executed
// next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/controller/children.h"
#include "engine/controller/fusion.h"
#include "engine/controller/news.h"
#include "engine/controller/rank_state.h"
#include "engine/controller/response_cache.h"
#include "engine/controller/role.h"
#include "engine/controller/stall.h"
#include "engine/message/wire.h"
#include "engine/tune/autotune.h"

namespace hvd {

class Coordinator final : public Role {
 public:
  // Decisions are applied to the state of rank 0 and sent to its children immediately, in order.
  Coordinator(RankState& state, Children& children, const ControllerOptions& options);

  void on_request(Entry& entry, std::int64_t now_ns) override;
  void join(const Request& request, const std::vector<int>& ranks, std::int64_t now_ns) override;
  void leave(int rank) override;
  void park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) override;
  Status blocked(Request request, const std::vector<int>& ranks, std::int64_t now_ns) override;
  void carried_out(std::int64_t bytes) override { step_bytes_ += bytes; }
  void in_flight(const InFlight& in_flight) override;
  bool holds_on_devices() const override { return !fusion_.held_on_devices().empty(); }

  void work(std::int64_t now_ns) override;
  std::int64_t due_in(std::int64_t now_ns) const override;
  bool idle() const override { return fusion_.empty() && state_.joined().empty(); }
  std::vector<std::string> take_warnings() override;
  void used(int slot) override;

 private:
  struct Name {  // of an entry
    int set;
    std::string name;
  };
  std::vector<Name> waiting_names() const;
  void join(int rank, std::int64_t now_ns);
  void fail_all(const std::vector<std::pair<const Entry*, Status>>& proven);
  bool fail_late(Entry& entry);
  void match(Entry& entry);
  void answer_probe(const Entry& probe, Entry& send);
  void fail(const Entry& entry, const Status& status, const RankSet& ranks);
  void change(const Entry& entry);
  void change(const Request& request, Response& response);
  Status check_set(const std::vector<std::int64_t>& ranks) const;
  void remove_set(int id);
  void flush();
  void issue(const ResponseMessage& message);
  void issue(const std::vector<int>& slots);
  void obey(const Status& status);
  void issue(const std::vector<FusionManager::FusedResponse>& all);
  void issue(const FusionManager::FusedResponse& fused);
  void keep(const FusionManager::FusedResponse& fused, ResponseMessage& message);
  void inspect(std::int64_t now_ns);
  std::int64_t stalls_since(const Waiting& waiting, std::int64_t now_ns) const;
  void shut_down(const Waiting& late, std::int64_t now_ns);
  void tune(std::int64_t now_ns);

  RankState& state_;
  Children& children_;
  const ControllerOptions options_;
  FusionManager fusion_;
  bool probes_ = false;  // a rank has probed: only then sends may have to answer one
  InFlight in_flight_;
  CacheLru order_;
  std::unique_ptr<Tuner> tuner_;  // nullptr: autotuning is off
  RankSet left_;
  int last_joined_ = -1;
  std::int64_t joined_since_ns_ = 0;
  std::int64_t regions_ = 0;  // allocated so far
  std::int64_t step_bytes_ = 0;
  bool warned_of_capacity_ = false;
  StallTimer stall_timer_;
  Deadlocks deadlocks_;
  RankSet parked_;
  std::map<int, std::int64_t> resumed_ns_;  // by rank: when it last left a prompt
  std::vector<std::string> warnings_;
};

}  // namespace hvd
