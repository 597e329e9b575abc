// Shared-memory fast path of the negotiation: when every rank of a host blocks in a call for the
// same operation, counting on one shared word replaces messages to rank 0 and back
// (engine/controller/controller.h).
//   position  number of operations of all ranks that a rank has executed. All ranks execute the
//             same operations in the same order, so ranks at one position have the same history
//   text      the encoded request of a rank; written to its own memory before the rank is counted
//   open      ranks wait at a position: the first of them, and their number
//   complete  all ranks wait there with the same request: it is the next operation of each of them
//   closed    a rank stopped waiting: ranks at this position negotiate by messages
//   round     number of times the word was opened, so that it is never mistaken for an older one
//   past      1 + the last complete position; published by the rank that opens another one
//   data      a rank's data for the operation, beside its text; in two halves, used alternately by
//             operations with data: a rank that is counted for one operation has read the data of
//             the one before the last
// A counted rank leaves by closing; one compare-and-swap decides whether that happens before the
// last rank is counted. A rank that finds the word at another position checks `past`: some
// operations (a barrier, a broadcast at its root) complete without waiting, so other ranks may be
// ahead although this rank's position never became complete. Templates over the memory, so that the
// interleaving explorer (tests/native/explorer) runs this code.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace hvd {

// The word: position in the upper half, then round, first, count; count 0: closed.
template <class Value>
struct FastPathWord {
  static constexpr unsigned kPositionBits = std::numeric_limits<Value>::digits / 2;
  static constexpr unsigned kRankBits = kPositionBits / 4;
  static constexpr unsigned kMostRanks = (1U << kRankBits) - 2;

  static constexpr Value kCount = (Value{1} << kRankBits) - 1;
  static constexpr Value kRound = Value{1} << (2 * kRankBits);
  static constexpr Value kRounds = (Value{1} << kPositionBits) - kRound;
  static constexpr Value kPositions = (Value{1} << kPositionBits) - 1;

  static Value position(Value word) { return word >> kPositionBits; }
  static unsigned count(Value word) { return static_cast<unsigned>(word & kCount); }
  static unsigned first(Value word) { return static_cast<unsigned>(word >> kRankBits & kCount); }
  static Value closed(Value word) { return word & ~kCount; }
  // The word opened by `rank`, following `word`.
  static Value opened(Value word, Value position, unsigned rank) {
    return position << kPositionBits | ((word + kRound) & kRounds) |
           static_cast<Value>(rank) << kRankBits | 1U;
  }
};

// Its memory has prefetch(rank), load(), swap(expected, desired), past(), set_past(value),
// put(rank, text) and has(rank, text).
template <class Memory>
class BasicFastPath {
 public:
  using Value = typename Memory::Value;
  using Word = FastPathWord<Value>;
  enum class Stand : std::uint8_t { kCounted, kComplete, kElsewhere };

  BasicFastPath(const Memory& memory, unsigned rank, unsigned size)
      : memory_(memory), rank_(rank), size_(size) {}

  // kCounted: call poll() until it returns another value, or leave().
  Stand enter(Value position, std::string_view text) {
    position &= Word::kPositions;
    bool written = false;
    memory_.prefetch(rank_);
    Value seen = memory_.load();
    for (;;) {
      const bool here = Word::position(seen) == position && Word::count(seen) < size_;
      if (here && Word::count(seen) == 0) return Stand::kElsewhere;
      if (here && !memory_.has(Word::first(seen), text)) {
        if (memory_.swap(seen, Word::closed(seen))) return Stand::kElsewhere;
        continue;
      }
      if (!here && !std::exchange(written, true)) {
        memory_.put(rank_, text);
        memory_.set_past(past_);
      }
      const Value next = here ? seen + 1 : Word::opened(seen, position, rank_);
      if (!memory_.swap(seen, next)) continue;
      mine_ = next;
      return stand(next);
    }
  }

  Stand poll() { return stand(memory_.load()); }

  // Returns kComplete if it was too late to leave.
  Stand leave() {
    Value seen = memory_.load();
    while (stand(seen) == Stand::kCounted) {
      if (memory_.swap(seen, Word::closed(seen))) return Stand::kElsewhere;
    }
    return stand(seen);
  }

  // A rank at this position that is not counted negotiates by messages, so no rank need wait for
  // it.
  void close(Value position) {
    position &= Word::kPositions;
    Value seen = memory_.load();
    while (Word::position(seen) == position && Word::count(seen) != 0 &&
           Word::count(seen) < size_ && !memory_.swap(seen, Word::closed(seen))) {
    }
  }

 private:
  Stand stand(Value seen) {
    const Value own = Word::position(mine_) + 1;
    const bool moved = Word::closed(seen) != Word::closed(mine_);
    if (moved ? memory_.past() == own : Word::count(seen) == size_) {
      past_ = own;
      return Stand::kComplete;
    }
    return moved || Word::count(seen) == 0 ? Stand::kElsewhere : Stand::kCounted;
  }

  Memory memory_;
  unsigned rank_, size_;
  Value mine_ = 0;
  Value past_ = 0;  // 0: none yet
};

constexpr std::size_t kFastPathTextBytes = 248;

struct FastPathHeader {
  alignas(64) std::atomic<std::uint64_t> word{0};
  std::atomic<std::uint64_t> past{
      0};  // on the cache line of the word, which the opening rank owns anyway
};

// May be read while another rank writes it (the result is then discarded), so its words are atomic.
struct alignas(64) FastPathText {
  static constexpr std::size_t kWords = kFastPathTextBytes / 8;
  std::atomic<std::uint64_t> length{0};
  std::array<std::atomic<std::uint64_t>, kWords> words{};
};

// Bytes of a rank's data: the limit of the all-to-all exchange (collective/select.cc).
constexpr std::size_t fast_path_data_bytes(std::size_t ranks) {
  if (ranks <= 4) return std::size_t{64} << 10U;
  if (ranks <= 8) return std::size_t{32} << 10U;
  return ranks <= 32 ? std::size_t{4} << 10U : 0;
}

struct FastPathData {
  std::byte* base = nullptr;  // of all ranks; nullptr: none
  std::size_t bytes = 0;      // of a half

  std::byte* half(int rank, int number) const {
    return base + (2 * static_cast<std::size_t>(rank) + static_cast<std::size_t>(number)) * bytes;
  }
};

struct FastPathMemory {
  using Value = std::uint64_t;

  FastPathHeader* header = nullptr;
  FastPathText* texts = nullptr;  // by rank
  unsigned ranks = 0;

  Value load() const { return header->word.load(std::memory_order_acquire); }
  bool swap(Value& expected, Value desired) const {
    return header->word.compare_exchange_strong(expected, desired, std::memory_order_acq_rel,
                                                std::memory_order_acquire);
  }
  // Ordered by the word: stored before its swap, loaded after its load.
  Value past() const { return header->past.load(std::memory_order_relaxed); }
  void set_past(Value value) const { header->past.store(value, std::memory_order_relaxed); }
  // Prefetch another rank's text while the word is being loaded.
  void prefetch(unsigned rank) const {
    const FastPathText& next = texts[rank + 1 == ranks ? 0 : rank + 1];
    __builtin_prefetch(&next.length);
    __builtin_prefetch(&next.words[8]);
  }
  // At most kLaneTextBytes.
  void put(unsigned rank, std::string_view text) const {
    FastPathText& to = texts[rank];
    to.length.store(text.size(), std::memory_order_relaxed);
    for (std::size_t at = 0; at < text.size(); at += 8) {
      to.words[at / 8].store(word_of(text, at), std::memory_order_relaxed);
    }
  }
  bool has(unsigned rank, std::string_view text) const {
    if (rank >= ranks) return false;
    const FastPathText& from = texts[rank];
    if (from.length.load(std::memory_order_relaxed) != text.size()) return false;
    for (std::size_t at = 0; at < text.size(); at += 8) {
      if (from.words[at / 8].load(std::memory_order_relaxed) != word_of(text, at)) return false;
    }
    return true;
  }

 private:
  static std::uint64_t word_of(std::string_view text, std::size_t at) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, text.size() - at < 8 ? text.size() - at : 8);
    return word;
  }
};

using FastPath = BasicFastPath<FastPathMemory>;

}  // namespace hvd
