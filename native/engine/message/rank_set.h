// A set of small numbers (ranks, or ranks by their number in a subtree). The first 64 need no
// memory of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

}  // namespace hvd
