// State of one rank in the negotiation that does not depend on its position in the tree, updated by
// the decisions of rank 0.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/controller/news.h"
#include "engine/controller/process_sets.h"
#include "engine/eager/eager_rounds.h"
#include "engine/message/rank_set.h"
#include "engine/message/request.h"
#include "engine/message/wire.h"

namespace hvd {

// All ranks' joins are one operation, whatever name each rank uses.
constexpr const char* kJoinName = "join";

// The error for requests in a set that has been removed.
Status removed_set(int id);

class RankState {
 public:
  RankState(int rank, int size, int fanout)
      : tree_(rank, size, fanout), sets_(tree_), eager_(rank, size) {}
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  const Subtree& tree() const { return tree_; }
  bool is_root() const { return tree_.rank() == 0; }
  int own() const { return tree_.own_number(); }
  const ProcessSets& sets() const { return sets_; }
  EagerRounds& eager() { return eager_; }
  const EagerRounds& eager() const { return eager_; }
  MessageTable& table() { return table_; }
  const MessageTable& table() const { return table_; }
  std::uint64_t assignments() const { return assignments_; }  // of slots, as far as this rank knows
  bool caches() const { return caches_; }

  // The ranks of the subtree that have joined.
  const RankSet& joined() const { return joined_; }
  void add_joined(int number) { joined_.add(number); }
  // This rank has joined, with this name for the operation.
  void join_as(std::string name) { join_name_ = std::move(name); }
  bool has_joined() const { return !join_name_.empty(); }
  const std::string& join_name() const { return join_name_; }

  // The first rank that left, which may be why other ranks left; negative: none has.
  int first_left() const { return first_left_; }
  void record_left(int rank);
  // This rank's connection to rank 0 is lost because `rank` left.
  void end(int rank);

  // All ranks of a requested operation have requested it or joined.
  bool complete(const Entry& entry) const;
  Waiting waiting(const Entry& entry) const;

  // Apply a decision to these tables and, if it concerns this rank, to its agenda.
  Status learn(const ResponseMessage& message);
  Status learn(const std::vector<int>& slots);
  // Complete the open eager round.
  Status complete_round();
  // For this rank alone.
  void put_on_agenda(Response response) { agenda_.push_back(std::move(response)); }
  bool has_agenda() const { return !agenda_.empty(); }
  void take_agenda(News& news);

 private:
  Status learn_slots(const std::vector<int>& slots);
  void step(bool all_ranks);
  Status learn_answers(const ResponseMessage& message, const ProcessSet& set);
  void remember_failure(Entry& entry, const Status& status, const RankSet& numbers) const;
  Status learn_change(const Response& response);
  void put_on_agenda(const ResponseMessage& message, const ProcessSet& set);
  void remove_set(int id);

  const Subtree tree_;
  ProcessSets sets_;
  EagerRounds eager_;
  MessageTable table_;
  std::uint64_t assignments_ = 0;
  bool caches_ = true;
  RankSet joined_;
  std::string join_name_;  // empty: it has not joined
  int first_left_ = -1;
  std::vector<Response> agenda_;
  std::size_t cached_ = 0;  // how many of the agenda arrived as slots
};

}  // namespace hvd
