// Rank 0: sees when everybody has asked, and decides what is done next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/controller/controller.h"
#include "engine/controller/deadlock.h"
#include "engine/controller/fusion.h"
#include "engine/controller/rank_state.h"
#include "engine/controller/response_cache.h"
#include "engine/controller/stall.h"
#include "engine/message/wire.h"
#include "engine/tune/autotune.h"

namespace hvd {

// Where decisions go: to all whom they concern, rank 0 included, at once and in this order.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void issue(const ResponseMessage& message) = 0;
  virtual void issue(const std::vector<int>& slots) = 0;
};

class Coordinator {
 public:
  Coordinator(RankState& state, const ControllerOptions& options, ResponseSink& post);

  // Somebody has asked. The entry may be gone afterwards.
  void asked(Entry& entry, std::int64_t now_ns);
  void join(int rank, std::int64_t now_ns);
  void leave(int rank);
  // The rank waits for the person at a prompt, or no longer: what waits for it is not stalled.
  void park(int rank, bool parked, std::int64_t now_ns);
  // The rank asks for nothing else than this before what it waits for has ended.
  void blocked(int rank, const Blocked& blocked, std::int64_t now_ns);
  void carried_out(std::int64_t bytes) { step_bytes_ += bytes; }
  void work(std::int64_t now_ns);  // what is due

  std::int64_t due_in(std::int64_t now_ns) const;
  bool idle() const { return fusion_.empty() && state_.joined.empty(); }
  std::vector<std::string> take_warnings();

 private:
  struct Name {
    int set;
    std::string name;
  };
  std::vector<Name> waiting_names() const;
  bool complete(const Entry& entry) const;
  bool fail_late(Entry& entry);
  void fail(const Entry& entry, const Status& status, const RankSet& who);
  void change(const Entry& entry);
  void change(const Request& request, Response& response);
  Status check_set(const std::vector<std::int64_t>& ranks) const;
  void remove_set(int id);
  void flush();
  void issue(const std::vector<FusionManager::FusedResponse>& all);
  void issue(const FusionManager::FusedResponse& fused);
  void keep(const FusionManager::FusedResponse& fused, ResponseMessage& message);
  void inspect(std::int64_t now_ns);
  std::int64_t stalls_since(const Waiting& waiting, std::int64_t now_ns) const;
  void shut_down(const Waiting& late, std::int64_t now_ns);
  void tune(std::int64_t now_ns);

  RankState& state_;
  const ControllerOptions options_;
  ResponseSink& sink_;
  FusionManager fusion_;
  CacheLru order_;
  std::unique_ptr<Tuner> tuner_;  // none: the user has decided
  RankSet left_;
  int last_joined_ = -1;
  std::int64_t regions_ = 0;  // given out so far
  std::int64_t step_bytes_ = 0;
  bool warned_of_capacity_ = false;
  StallTimer stall_timer_;
  Deadlocks deadlocks_;
  RankSet parked_;
  std::map<int, std::int64_t>
      resumed_ns_;  // those that were parked before, since when they are not
  std::vector<std::string> warnings_;
};

}  // namespace hvd
