// Eager rounds: ranks that block in the same small sum send each other its data without negotiating
// with rank 0 first. A rank that has the data of all ranks treats the sum as decided; no response
// is sent.
//   position   number of responses for all ranks that this rank has received plus rounds that it
//              has completed: the same operation has the same position on every rank
//   round      a position at which this rank has sent its data. It completes, or it is dead: then
//              its operation is requested like any other, and the data are dropped
//   notice     sent to rank 0 besides the data: the rank's ordinary request, in case the round is
//              dead, and the fact that it has sent its data
//   closed     a position at which this rank will not send data any more: it has requested another
//              operation there, or has announced so to rank 0
// A round needs the data of every rank. Once rank 0 has sent its own data it is bound: it decides
// nothing else at that position until it has all data, or knows of one rank for which the position
// is closed: then no rank completes the round. A rank may skip any round, for any reason.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/message/rank_set.h"

namespace hvd {

class EagerRounds {
 public:
  EagerRounds(int rank, int size)
      : rank_(rank),
        size_(size),
        notices_(at(rank == 0 ? size : 0)),
        overdue_(notices_.size(), 0) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t completed() const { return completed_; }
  bool open() const { return slot_ >= 0; }
  int slot() const { return slot_; }
  bool bound() const { return rank_ == 0 && open(); }

  // After misses, ranks try at fewer and fewer positions, the same ones on every rank.
  bool may_begin() const {
    return !forbidden_ && !open() && position_ >= first_free_ &&
           (position_ & ((std::uint64_t{1} << misses_) - 1)) == 0;
  }
  void begin(int slot, std::int64_t now_ns);
  void close(std::uint64_t position);
  void close() { close(position_); }
  void forbid() { forbidden_ = true; }  // at any position

  // A response was received: for all ranks, or only for some of them.
  void passed();
  void strayed();
  void die();

  // Record a peer's data for the open round. True: the data of all ranks are here.
  bool receive_data(int peer);
  bool has_received(int peer) const { return received_.has(peer); }
  // Advance to the next position.
  void complete();

  // Rank 0 only.
  enum class Notice : std::uint8_t {
    kOver,     // of a completed round
    kOfRound,  // of the open round
    kAhead,    // its sender has completed the open round
    kRequest   // of no round: an ordinary request
  };
  Notice receive_notice(int from, std::uint64_t position, int slot);
  // All of these ranks, which have requested it, have sent their data for the slot at this
  // position.
  bool all_sent(const RankSet& ranks, int slot) const;
  bool has_sent(int peer) const { return sent(peer, slot_); }
  std::vector<int> silent() const;  // ranks that have not sent, as far as rank 0 knows
  std::int64_t since_ns() const { return since_ns_; }
  bool voided() const { return voided_; }
  void mark_voided() { voided_ = true; }

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
  RankSet received_;     // peers whose data arrived
  std::int64_t since_ns_ = 0;
  bool voided_ = false;        // silent ranks were notified that the round is dead unless they sent
  std::vector<Sent> notices_;  // by rank: the last notice
  std::vector<int> overdue_;   // by rank: notices of completed rounds that are still to arrive
};

}  // namespace hvd
