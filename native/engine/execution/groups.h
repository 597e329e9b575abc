// The process sets that this rank has added and not removed yet, also for user threads. The
// controller has the agreed sets, which may be ahead of these (engine/controller/process_sets.h).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "collective/backend/backend.h"
#include "engine/message/request.h"

namespace hvd {

class Groups {
 public:
  Groups(int rank, int size) : rank_(rank), size_(size) {
    std::vector<int> all(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) all[static_cast<std::size_t>(r)] = r;
    set(0, std::move(all));
  }

  // nullptr: no set has this id. group_rank is -1 if this rank is not a member.
  std::shared_ptr<const Group> find(int id) const {
    const MutexLock lock(mutex_);
    const auto found = groups_.find(id);
    if (found != groups_.end()) return found->second;
    return id >= kFirstPair ? pair(id) : nullptr;
  }

  void set(int id, std::vector<int> ranks) {
    auto group = make(id, std::move(ranks));
    const MutexLock lock(mutex_);
    groups_[id] = std::move(group);
  }

  bool only_the_global() const {
    const MutexLock lock(mutex_);
    return groups_.size() == 1;
  }

  bool erase(int id) {
    const MutexLock lock(mutex_);
    return groups_.erase(id) == 1;
  }

 private:
  std::shared_ptr<const Group> make(int id, std::vector<int> ranks) const {
    auto group = std::make_shared<Group>();
    group->id = id;
    group->ranks = std::move(ranks);
    const auto mine = std::find(group->ranks.begin(), group->ranks.end(), rank_);
    group->group_rank =
        mine == group->ranks.end() ? -1 : static_cast<int>(mine - group->ranks.begin());
    return group;
  }

  std::shared_ptr<const Group> pair(int id) const REQUIRES(mutex_) {
    const auto known = pairs_.find(id);
    if (known != pairs_.end()) return known->second;
    const std::optional<Pair> pair = pair_of(id, size_);
    if (!pair) return nullptr;
    return pairs_.emplace(id, make(id, {pair->low, pair->high})).first->second;
  }

  const int rank_, size_;
  mutable Mutex mutex_;
  std::map<int, std::shared_ptr<const Group>> groups_ GUARDED_BY(mutex_);
  mutable std::map<int, std::shared_ptr<const Group>> pairs_ GUARDED_BY(mutex_);  // once used
};

}  // namespace hvd
