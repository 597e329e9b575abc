#include "engine/controller/tree_node.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

void set_bit(std::vector<std::uint64_t>& words, int slot) {
  const auto at = static_cast<std::size_t>(slot);
  if (at / 64 >= words.size()) words.resize(at / 64 + 1, 0);
  words[at / 64] |= std::uint64_t{1} << (at % 64);
}

}  // namespace

void TreeNode::on_request(Entry& entry, std::int64_t now_ns) {
  const bool late = entry.failure && entry.failure->owed.meets(entry.requested);
  const bool alone =
      entry.kind == Kind::kProbe || entry.kind == Kind::kSend;  // rank 0 matches them
  if (late || alone || !keeps_ || state_.complete(entry)) return send(entry);
  if (patience_ns_ >= 0) stall_timer_.start(now_ns + patience_ns_);
}

void TreeNode::send(Entry& entry) {
  if (entry.sent.contains(entry.requested)) return;
  const RankSet& members = entry.set->here;
  const bool whole = entry.sent.empty() && entry.requested.contains(members);
  if (whole && state_.caches() && entry.slot >= 0 && entry.by_slot.contains(members)) {
    set_bit(up_.slots, entry.slot);
    entry.sent_slot = entry.slot;
    entry.sent_version = state_.assignments();
  } else {
    const RankSet fresh = without(entry.requested, entry.sent);
    spell_out(entry);
    for (const Variant& variant : entry.in_full) {
      const RankSet numbers = both(variant.ranks, fresh);
      if (numbers.empty()) continue;
      const bool all = whole && numbers.contains(members);
      up_.full.push_back(
          {*variant.request, all ? std::vector<int>() : state_.tree().ranks_of(numbers)});
    }
  }
  entry.sent = entry.requested;
  if (entry.failure) {
    entry.failure->owed.remove(entry.requested);
    if (entry.failure->owed.empty()) entry.failure.reset();
  }
}

void TreeNode::send_notice(Entry& entry, std::uint64_t position) {
  send(entry);
  up_.position = position;
}

void TreeNode::join(const Request& request, const std::vector<int>& ranks, std::int64_t now_ns) {
  for (const int rank : ranks) state_.add_joined(state_.tree().number_of(rank));
  up_.full.push_back({request, ranks});
  for (Entry* entry : state_.table().waiting()) {
    if (entry->set->id == 0) on_request(*entry, now_ns);
  }
}

void TreeNode::leave(int rank) {
  Request request;
  request.kind = Kind::kLeave;
  keep_nothing();
  up_.full.push_back({std::move(request), {rank}});
}

void TreeNode::park(Request request, const std::vector<int>& ranks, std::int64_t /*now_ns*/) {
  up_.full.push_back({std::move(request), ranks});
}

// Rank 0 needs all requests of the blocked ranks, even those that other ranks of the subtree have
// not made yet.
Status TreeNode::blocked(Request request, const std::vector<int>& ranks, std::int64_t /*now_ns*/) {
  send_all();
  up_.full.push_back({std::move(request), ranks});
  return Status::ok();
}

// After a departure rank 0 fails incomplete requests, so none is held back.
void TreeNode::keep_nothing() {
  if (std::exchange(keeps_, false)) send_all();
}

void TreeNode::send_all() {
  for (Entry* entry : state_.table().waiting()) send(*entry);
}

void TreeNode::again(int slot, std::uint64_t version) {
  for (Entry* entry : state_.table().waiting()) {
    if (entry->sent_slot != slot || entry->sent_version != version) continue;
    if (entry->slot == slot) state_.table().forget_slot(*entry);
    entry->sent_slot = -1;
    entry->sent.clear();
    return send(*entry);
  }
}

// Ranks of this subtree that wait together with the stalled ranks must receive the error, too.
void TreeNode::learned(const Response& response, std::int64_t now_ns) {
  if (response.kind == Kind::kLeave) keep_nothing();
  if (response.status.code != Code::kStalled) return;
  for (const std::string& name : response.names) {
    Entry* const entry = state_.table().find(response.set, name);
    if (entry != nullptr && !entry->requested.empty()) on_request(*entry, now_ns);
  }
}

void TreeNode::work(std::int64_t now_ns) {
  if (!stall_timer_.due(now_ns)) return;
  stall_timer_.sleep();
  for (Entry* entry : state_.table().waiting()) {
    if (entry->sent.contains(entry->requested)) continue;
    if (entry->since_ns + patience_ns_ <= now_ns) {
      send(*entry);
    } else {
      stall_timer_.start(entry->since_ns + patience_ns_);  // the oldest is the first
    }
  }
}

std::int64_t TreeNode::due_in(std::int64_t now_ns) const {
  return state_.table().count_waiting() == 0 ? -1 : stall_timer_.due_in(now_ns);
}

std::string TreeNode::take_requests() {
  if (up_.empty()) return {};
  up_.assignments = state_.assignments();
  up_.changes = state_.sets().changes();
  std::string bytes = encode(up_);
  up_.slots.clear();
  up_.full.clear();
  up_.position.reset();
  return bytes;
}

}  // namespace hvd
