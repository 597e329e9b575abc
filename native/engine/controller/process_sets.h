// Process sets of one rank's view. All ranks keep the same table, because sets are added and
// removed by responses.
//   here     the members within this rank's subtree, by their numbers there
//   born     number of changes when the set was added: an earlier request with the same id meant
//            another set
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "engine/message/rank_set.h"
#include "engine/message/request.h"

namespace hvd {

struct ProcessSet {
  int id = 0;
  std::uint64_t born = 0;
  int size = 0;
  std::vector<int> ranks;  // ascending; empty for set 0: all
  RankSet here;
  int count_here = 0;

  int rank_at(int group_rank) const {
    return ranks.empty() ? group_rank : ranks[static_cast<std::size_t>(group_rank)];
  }
};

class ProcessSets {
 public:
  explicit ProcessSets(const Subtree& tree);

  const ProcessSet* find(int id) const {  // nullptr: no such set
    const auto at = static_cast<std::size_t>(id);
    if (id >= 0 && at < sets_.size()) return sets_[at].get();
    return id >= kFirstPair ? find_pair(id) : nullptr;
  }
  std::uint64_t changes() const { return changes_; }
  bool only_the_global() const {
    return std::count(sets_.begin(), sets_.end(), nullptr) + 1 == static_cast<int>(sets_.size());
  }
  // Ascending, distinct, of this engine, not empty.
  bool valid(const std::vector<std::int64_t>& ranks) const;
  // The id of the set with these ranks; negative: no such set.
  int same_as(const std::vector<std::int64_t>& ranks) const;
  int next_id() const;  // freed ids first, in the order in which they were freed

  void add(int id, const std::vector<std::int64_t>& ranks);
  void remove(int id);

 private:
  const ProcessSet* find_pair(int id) const;
  std::unique_ptr<ProcessSet> make(int id, const std::vector<std::int64_t>& ranks) const;

  const Subtree& tree_;
  std::vector<std::unique_ptr<const ProcessSet>> sets_;             // by id
  mutable std::map<int, std::unique_ptr<const ProcessSet>> pairs_;  // by id, made when first used
  std::deque<int> free_;
  std::uint64_t changes_ = 0;
};

}  // namespace hvd
