#include "engine/eager/eager_rounds.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

constexpr unsigned kMostMisses = 6;

}  // namespace

void EagerRounds::begin(int slot, std::int64_t now_ns) {
  slot_ = slot;
  received_.clear();
  since_ns_ = now_ns;
  voided_ = false;
  close();  // at most one round per position
}

void EagerRounds::close(std::uint64_t position) {
  first_free_ = std::max(first_free_, position + 1);
}

void EagerRounds::passed() {
  die();
  ++position_;
}

// This rank's operation may be answered without a step to the next position. It must not begin a
// second round at this one: peers would mistake its data for those of the first.
void EagerRounds::strayed() {
  die();
  close();
}

void EagerRounds::die() {
  if (std::exchange(slot_, -1) < 0) return;
  misses_ = std::min(misses_ + 1, kMostMisses);
}

bool EagerRounds::receive_data(int peer) {
  received_.add(peer);
  for (int peer_rank = 0; peer_rank < size_; ++peer_rank) {
    if (peer_rank != rank_ && !received_.has(peer_rank)) return false;
  }
  return true;
}

void EagerRounds::complete() {
  if (rank_ == 0) {
    for (const int peer : silent()) ++overdue_[at(peer)];
  }
  misses_ = 0;
  slot_ = -1;
  ++position_;
  ++completed_;
}

EagerRounds::Notice EagerRounds::receive_notice(int from, std::uint64_t position, int slot) {
  int& overdue = overdue_[at(from)];
  if (overdue > 0) {
    --overdue;
    return Notice::kOver;
  }
  if (position > position_) return Notice::kAhead;
  notices_[at(from)] = {position, slot};
  return open() && has_sent(from) ? Notice::kOfRound : Notice::kRequest;
}

bool EagerRounds::sent(int peer, int slot) const {
  const Sent& last = notices_[at(peer)];
  return last.slot == slot && last.position == position_;
}

bool EagerRounds::all_sent(const RankSet& ranks, int slot) const {
  for (const int rank : ranks.numbers()) {
    if (!sent(rank, slot)) return false;
  }
  return true;
}

std::vector<int> EagerRounds::silent() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && !has_sent(peer)) ranks.push_back(peer);
  }
  return ranks;
}

}  // namespace hvd
