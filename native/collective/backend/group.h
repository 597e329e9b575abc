// Terms.
//   group       the ranks that execute an operation together: those of one process set, in order
//   group rank  a rank's number within its group
//   registry    a backend's objects per group, built once: its context, its communicator. The
//               engine has the existing sets (engine/execution/groups.h)
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace hvd {

struct Group {
  int id = 0;              // of the process set; 0: all ranks
  std::vector<int> ranks;  // of the engine, ascending
  int group_rank = 0;      // this rank's

  int size() const { return static_cast<int>(ranks.size()); }
  // The rank `steps` to the right, cyclically; negative: to the left.
  int rank_at(int steps) const {
    const int n = size();
    return ranks[static_cast<std::size_t>(((group_rank + steps) % n + n) % n)];
  }
  // Ids are reused after their set was removed, and a part of a group has the group's id.
  bool operator==(const Group& other) const {
    return id == other.id && group_rank == other.group_rank && ranks == other.ranks;
  }
};

// Elements keep their address. Not thread-safe.
template <typename T>
class GroupRegistry {
 public:
  T* find(const Group& group) const {  // nullptr: not registered
    for (const auto& [met, kept] : entries_) {
      if (met == group) return kept.get();
    }
    return nullptr;
  }
  T& add(const Group& group, std::unique_ptr<T> kept) {
    return *entries_.emplace_back(group, std::move(kept)).second;
  }
  template <typename Function>
  void for_each(const Function& function) const {
    for (const auto& [met, kept] : entries_) function(*kept);
  }
  std::size_t size() const { return entries_.size(); }
  void clear() { entries_.clear(); }

 private:
  std::vector<std::pair<Group, std::unique_ptr<T>>> entries_;
};

}  // namespace hvd
