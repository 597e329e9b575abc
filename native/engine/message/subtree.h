// The subtree of one rank: the rank itself, and all ranks whose path to rank 0 leads through it.
//   number   index of a rank in a subtree, in ascending order. Rank 0's subtree contains all ranks,
//            and a rank's number there is the rank.
#pragma once

#include <vector>

#include "engine/message/rank_set.h"
#include "transport/mesh/mesh.h"

namespace hvd {

class Subtree {
 public:
  Subtree(int rank, int size, int fanout)
      : rank_(rank), size_(size), fanout_(fanout), levels_(levels_of(rank)) {
    const std::vector<int> children = children_of(rank, size, fanout);
    below_.resize(children.size());
    for (std::size_t i = 0; i < children.size(); ++i) {
      for (const Level& level : levels_of(children[i])) {
        for (long long one = level.first; one <= level.last; ++one) {
          below_[i].add(number_of(static_cast<int>(one)));
        }
      }
    }
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int parent() const { return parent_of(rank_, fanout_); }
  int count() const { return levels_.back().before + width(levels_.back()); }
  int own_number() const { return 0; }  // the smallest rank of its subtree

  // -1: not in this subtree.
  int number_of(int rank) const {
    for (const Level& level : levels_) {
      if (rank >= level.first && rank <= level.last) {
        return level.before + static_cast<int>(rank - level.first);
      }
    }
    return -1;
  }
  int rank_of(int number) const {
    for (const Level& level : levels_) {
      if (number < level.before + width(level)) {
        return static_cast<int>(level.first) + number - level.before;
      }
    }
    return -1;
  }

  // Children by their place, 0 to children() - 1.
  int children() const { return static_cast<int>(below_.size()); }
  int child(int place) const { return rank_ * fanout_ + 1 + place; }
  // -1: not a child.
  int place_of(int rank) const {
    return rank > 0 && parent_of(rank, fanout_) == rank_ ? rank - child(0) : -1;
  }
  // A child without children of its own.
  bool is_leaf(int place) const {
    return static_cast<long long>(child(place)) * fanout_ + 1 >= size_;
  }
  const RankSet& below(int place) const { return below_[static_cast<std::size_t>(place)]; }

  // True if the path from `rank` to rank 0 leads through `other`; for any ranks.
  bool leads_through(int rank, int other) const {
    for (int one = parent_of(rank, fanout_); one >= 0; one = parent_of(one, fanout_)) {
      if (one == other) return true;
    }
    return false;
  }
  std::vector<int> ranks_of(const RankSet& numbers) const {
    std::vector<int> ranks = numbers.numbers();
    for (int& one : ranks) one = rank_of(one);
    return ranks;
  }

 private:
  struct Level {
    long long first, last;
    int before;  // number of ranks on the levels above
  };

  static int width(const Level& level) { return static_cast<int>(level.last - level.first + 1); }

  std::vector<Level> levels_of(int rank) const {
    std::vector<Level> levels;
    Level level{rank, rank, 0};
    while (level.first < size_) {
      level.last = std::min<long long>(level.last, size_ - 1);
      levels.push_back(level);
      level.before += width(level);
      level.first = level.first * fanout_ + 1;
      level.last = level.last * fanout_ + fanout_;
    }
    return levels;
  }

  int rank_, size_, fanout_;
  std::vector<Level> levels_;
  std::vector<RankSet> below_;
};

}  // namespace hvd
