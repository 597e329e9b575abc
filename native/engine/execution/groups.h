// The process sets as this rank knows them: added and removed as rank 0 orders, asked for by user
// threads too.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "collective/backend/group.h"

namespace hvd {

class Teams {
 public:
  Teams(int rank, int size) : rank_(rank) {
    std::vector<int> all(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) all[static_cast<std::size_t>(r)] = r;
    set(0, std::move(all));
  }

  // Null: there is no set of this id. place is -1 when this rank does not belong to it.
  std::shared_ptr<const Team> find(int id) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = teams_.find(id);
    return found == teams_.end() ? nullptr : found->second;
  }

  void set(int id, std::vector<int> ranks) {
    auto team = std::make_shared<Team>();
    team->id = id;
    team->ranks = std::move(ranks);
    const auto mine = std::find(team->ranks.begin(), team->ranks.end(), rank_);
    team->place = mine == team->ranks.end() ? -1 : static_cast<int>(mine - team->ranks.begin());
    const std::lock_guard<std::mutex> lock(mutex_);
    teams_[id] = std::move(team);
  }

  bool only_the_global() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return teams_.size() == 1;
  }

  bool erase(int id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return teams_.erase(id) == 1;
  }

 private:
  const int rank_;
  mutable std::mutex mutex_;
  std::map<int, std::shared_ptr<const Team>> teams_;
};

}  // namespace hvd
