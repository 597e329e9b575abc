// A set of small numbers (ranks, or ranks by their number in a subtree). The first 64 need no
// memory of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/mesh/mesh.h"

namespace hvd {

class RankSet {
 public:
  RankSet() = default;
  RankSet(const RankSet& other) : first_(other.first_) {
    if (other.rest_) rest_ = std::make_unique<Words>(*other.rest_);
  }
  RankSet& operator=(const RankSet& other) {
    if (this != &other) *this = RankSet(other);
    return *this;
  }
  RankSet(RankSet&& other) noexcept
      : first_(std::exchange(other.first_, 0)), rest_(std::move(other.rest_)) {}
  RankSet& operator=(RankSet&& other) noexcept {
    first_ = std::exchange(other.first_, 0);
    rest_ = std::move(other.rest_);
    return *this;
  }
  ~RankSet() = default;

  bool has(int number) const {
    const auto at = static_cast<std::size_t>(number);
    return ((word(at / 64) >> (at % 64)) & 1U) != 0;
  }
  void add(int number) {
    const auto at = static_cast<std::size_t>(number);
    own(at / 64) |= std::uint64_t{1} << (at % 64);
  }
  void remove(int number) {
    const auto at = static_cast<std::size_t>(number);
    if (at / 64 < words()) own(at / 64) &= ~(std::uint64_t{1} << (at % 64));
  }
  void add(const RankSet& other) {
    for (std::size_t i = 0; i < other.words(); ++i) own(i) |= other.word(i);
  }
  void remove(const RankSet& other) {
    for (std::size_t i = 0; i < std::min(words(), other.words()); ++i) own(i) &= ~other.word(i);
  }
  void keep(const RankSet& other) {
    for (std::size_t i = 0; i < words(); ++i) own(i) &= other.word(i);
  }
  void clear() {
    first_ = 0;
    rest_.reset();
  }

  bool empty() const {
    for (std::size_t i = 0; i < words(); ++i) {
      if (word(i) != 0) return false;
    }
    return true;
  }
  bool contains(const RankSet& other) const {
    for (std::size_t i = 0; i < other.words(); ++i) {
      if ((other.word(i) & ~word(i)) != 0) return false;
    }
    return true;
  }
  bool meets(const RankSet& other) const {
    for (std::size_t i = 0; i < std::min(words(), other.words()); ++i) {
      if ((other.word(i) & word(i)) != 0) return true;
    }
    return false;
  }
  int count() const {
    int count = __builtin_popcountll(first_);
    for (std::size_t i = 1; i < words(); ++i) count += __builtin_popcountll(word(i));
    return count;
  }
  int first() const {  // of a set that is not empty
    std::size_t i = 0;
    while (word(i) == 0) ++i;
    return static_cast<int>(i * 64) + __builtin_ctzll(word(i));
  }
  std::vector<int> numbers() const {
    std::vector<int> all;
    for (std::size_t i = 0; i < words(); ++i) {
      for (std::uint64_t rest = word(i); rest != 0; rest &= rest - 1) {
        all.push_back(static_cast<int>(i * 64) + __builtin_ctzll(rest));
      }
    }
    return all;
  }

 private:
  using Words = std::vector<std::uint64_t>;

  std::size_t words() const { return rest_ ? 1 + rest_->size() : 1; }
  std::uint64_t word(std::size_t i) const {
    if (i == 0) return first_;
    return i < words() ? (*rest_)[i - 1] : 0;
  }
  std::uint64_t& own(std::size_t i) {
    if (i == 0) return first_;
    if (!rest_) rest_ = std::make_unique<Words>();
    if (rest_->size() < i) rest_->resize(i);
    return (*rest_)[i - 1];
  }

  std::uint64_t first_ = 0;
  std::unique_ptr<Words> rest_;
};

inline RankSet both(RankSet a, const RankSet& b) {
  a.keep(b);
  return a;
}

inline RankSet without(RankSet a, const RankSet& b) {
  a.remove(b);
  return a;
}

// The subtree of one rank: the rank itself, and all ranks whose path to rank 0 leads through it.
//   number   index of a rank in a subtree, in ascending order. Rank 0's subtree contains all ranks,
//            and a rank's number there is the rank.

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
