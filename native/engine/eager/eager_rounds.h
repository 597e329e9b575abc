// Eager rounds: ranks that stand in a call for the same small sum send each other its data instead
// of asking rank 0 first. Whoever has the data of all takes the sum as decided; no response is
// sent.
//   position   how many responses for all ranks this rank has learned, and rounds it has completed:
//              the same operation has the same position on every rank
//   round      one position at which this rank has sent its data. It completes, or it is dead: then
//              its operation is asked for like any other, and the data are dropped
//   notice     what rank 0 is sent besides the data: that rank's ordinary request, should the round
//              be dead, and the promise's opposite: it has sent
//   closed     a position at which this rank will not send any more: it has asked for something
//              else there, or has told rank 0 so
// A round needs the data of every rank. Rank 0 that has sent its own is bound: it decides nothing
// else at that position until it has all data, or knows of one rank for which the position is
// closed: then nobody completes it. Any rank may stay away from a round, for any reason.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/message/rank_set.h"

namespace hvd {

class EagerRounds {
 public:
  EagerRounds(int rank, int size)
      : rank_(rank), size_(size), noted_(at(rank == 0 ? size : 0)), overdue_(noted_.size(), 0) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t completed() const { return completed_; }
  bool open() const { return slot_ >= 0; }
  int slot() const { return slot_; }
  bool bound() const { return rank_ == 0 && open(); }

  // Ranks that miss each other try less and less often: by position, so at the same time.
  bool may_begin() const {
    return !forbidden_ && !open() && position_ >= first_free_ &&
           (position_ & ((std::uint64_t{1} << misses_) - 1)) == 0;
  }
  void begin(int slot, std::int64_t now_ns);
  void close(std::uint64_t position);
  void close() { close(position_); }
  void forbid() { forbidden_ = true; }  // at any position

  // A response has been learned: of all ranks, or of some of them only.
  void passed();
  void strayed();
  void die();

  // The data of a peer for the open round. True: now all are there.
  bool came(int peer);
  bool has_come(int peer) const { return come_.has(peer); }
  // From now on this rank is at the next position.
  void complete();

  // Rank 0 alone.
  enum class Notice : std::uint8_t {
    kOver,     // of a round that is complete
    kOfRound,  // of the open one
    kAhead,    // its sender has completed the open one
    kRequest   // of none: an ordinary request
  };
  Notice hear(int from, std::uint64_t position, int slot);
  // These ranks, who have asked for it, have all sent their data for the slot at this position.
  bool all_sent(const RankSet& who, int slot) const;
  bool has_sent(int peer) const { return sent(peer, slot_); }
  std::vector<int> silent() const;  // those who have not, as far as rank 0 has heard
  std::int64_t since_ns() const { return since_ns_; }
  bool voided() const { return voided_; }
  void note_voided() { voided_ = true; }

 private:
  struct Sent {
    std::uint64_t position = 0;
    int slot = -1;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  bool sent(int peer, int slot) const;

  int rank_, size_;
  std::uint64_t position_ = 0, completed_ = 0;
  std::uint64_t first_free_ = 0;  // the first position that is not closed
  bool forbidden_ = false;
  unsigned misses_ = 0;  // in a row
  int slot_ = -1;        // of the open round
  RankSet come_;         // whose data
  std::int64_t since_ns_ = 0;
  bool voided_ = false;       // the silent ones have been told that it is dead unless they sent
  std::vector<Sent> noted_;   // by rank: the last notice
  std::vector<int> overdue_;  // by rank: so many notices of completed rounds are still to come
};

}  // namespace hvd
