// What one rank knows of the agreement, whatever its place in the tree, and what it learns from
// what rank 0 has decided.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/controller/controller.h"
#include "engine/controller/message_table.h"
#include "engine/controller/process_sets.h"
#include "engine/message/request.h"
#include "engine/message/subtree.h"
#include "engine/message/wire.h"

namespace hvd {

// All joins are one, whatever each rank calls its own.
constexpr const char* kJoinName = "join";

Status removed_set(int id);

struct RankState {
  RankState(int rank, int size, int fanout) : tree(rank, size, fanout), sets(tree) {}

  Subtree tree;
  ProcessSets sets;
  MessageTable table;
  std::uint64_t assignments = 0;  // of slots, as far as this rank has heard
  bool cache = true;
  RankSet joined;         // of the subtree
  std::string join_name;  // this rank's own; empty: it has not joined
  int first_left = -1;    // the others may have left because of it
  std::vector<Response> agenda;
  std::size_t cached = 0;  // of these, how many came as slots

  bool is_root() const { return tree.rank() == 0; }
  int own() const { return tree.own_number(); }

  // Carries a decision into these tables and, where it concerns this rank, onto its agenda.
  Status learn(const ResponseMessage& message);
  Status learn(const std::vector<int>& slots);
  // This rank's way to rank 0 is gone.
  void end(int rank);
  Waiting waiting(const Entry& entry) const;

 private:
  Status learn_answers(const ResponseMessage& message, const ProcessSet& set);
  void remember_failure(Entry& entry, const Status& status, const RankSet& who) const;
  Status learn_change(const Response& response);
  void put_on_agenda(const ResponseMessage& message, const ProcessSet& set);
  void remove_set(int id);
};

}  // namespace hvd
