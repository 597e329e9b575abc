// State of one rank in the negotiation: what it knows, whatever its place in the tree, and what it
// learns from what rank 0 has decided.
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
#include "engine/message/request.h"
#include "engine/message/subtree.h"
#include "engine/message/wire.h"

namespace hvd {

// All joins are one, whatever each rank calls its own.
constexpr const char* kJoinName = "join";

// What is asked for in a set that has been removed.
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
  std::uint64_t assignments() const { return assignments_; }  // of slots, as far as it has heard
  bool caches() const { return caches_; }

  // Of the subtree, who has joined.
  const RankSet& joined() const { return joined_; }
  void add_joined(int number) { joined_.add(number); }
  // This rank has, and calls it so.
  void join_as(std::string name) { join_name_ = std::move(name); }
  bool has_joined() const { return !join_name_.empty(); }

  // The rank because of which the others may have left; negative: nobody has.
  int first_left() const { return first_left_; }
  void note_left(int rank);
  // This rank's way to rank 0 is gone.
  void end(int rank);

  // All whom an operation that somebody has asked for waits for have asked or joined.
  bool complete(const Entry& entry) const;
  Waiting waiting(const Entry& entry) const;

  // Carries a decision into these tables and, where it concerns this rank, onto its agenda.
  Status learn(const ResponseMessage& message);
  Status learn(const std::vector<int>& slots);
  // The open round is complete.
  Status complete_round();
  // For this rank alone.
  void put_on_agenda(Response response) { agenda_.push_back(std::move(response)); }
  bool has_agenda() const { return !agenda_.empty(); }
  void take_agenda(News& news);

 private:
  Status learn_slots(const std::vector<int>& slots);
  void step(bool all_ranks);
  Status learn_answers(const ResponseMessage& message, const ProcessSet& set);
  void remember_failure(Entry& entry, const Status& status, const RankSet& who) const;
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
  std::size_t cached_ = 0;  // of these, how many came as slots
};

}  // namespace hvd
