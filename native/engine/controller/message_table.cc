#include "engine/controller/message_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/controller/response_cache.h"

namespace hvd {
namespace {

template <typename Entries, typename Sets>
Entries waiting_in(Sets& sets) {
  Entries all;
  for (auto& [set, names] : sets) {
    for (auto& [name, entry] : names) {
      if (!entry.requested.empty()) all.push_back(&entry);
    }
  }
  std::sort(all.begin(), all.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->since_ns, a->set->id, *a->name) <
           std::tie(b->since_ns, b->set->id, *b->name);
  });
  return all;
}

RankSet only(int number) {
  RankSet set;
  set.add(number);
  return set;
}

}  // namespace

void merge(Variants& into, const Variant& addition) {
  for (Variant& variant : into) {
    if (variant.request == addition.request || same(*variant.request, *addition.request)) {
      variant.ranks.add(addition.ranks);
      return;
    }
  }
  into.push_back(addition);
}

Variants variants_of(const Entry& entry) {
  if (entry.by_slot.empty()) return entry.in_full;
  Variants all = entry.in_full;
  for (const Variant& known : entry.known) {
    RankSet ranks = both(known.ranks, entry.by_slot);
    if (!ranks.empty()) merge(all, {known.request, std::move(ranks)});
  }
  return all;
}

const Request* request_of(const Variants& variants, int number) {
  for (const Variant& variant : variants) {
    if (variant.ranks.has(number)) return variant.request.get();
  }
  return nullptr;
}

void spell_out(Entry& entry) {
  if (entry.by_slot.empty()) return;
  entry.in_full = variants_of(entry);
  entry.by_slot.clear();
}

Entry& MessageTable::at(const ProcessSet& set, const std::string& name) {
  const auto [position, inserted] = sets_[set.id].try_emplace(name);
  Entry& entry = position->second;
  if (inserted) {
    entry.set = &set;
    entry.name = &position->first;
  }
  return entry;
}

Entry* MessageTable::find(int set, const std::string& name) {
  const auto names = sets_.find(set);
  if (names == sets_.end()) return nullptr;
  const auto entry = names->second.find(name);
  return entry == names->second.end() ? nullptr : &entry->second;
}

std::vector<Entry*> MessageTable::waiting() { return waiting_in<std::vector<Entry*>>(sets_); }

std::vector<const Entry*> MessageTable::waiting() const {
  return waiting_in<std::vector<const Entry*>>(sets_);
}

void MessageTable::begin(Entry& entry, Kind kind, std::int64_t now_ns) {
  if (!entry.requested.empty()) return;
  ++waiting_;
  entry.kind = kind;
  entry.since_ns = now_ns;
  entry.warned_ns = now_ns;
}

void MessageTable::record(Entry& entry, const RankSet& numbers, Request request,
                          std::int64_t now_ns) {
  RankSet fresh = without(numbers, entry.requested);
  if (fresh.empty()) return;
  begin(entry, request.kind, now_ns);
  entry.requested.add(fresh);
  for (Variant& variant : entry.in_full) {
    if (same(*variant.request, request)) return variant.ranks.add(fresh);
  }
  entry.in_full.push_back({std::make_shared<const Request>(std::move(request)), std::move(fresh)});
}

void MessageTable::record(Entry& entry, int number, Request request, std::int64_t now_ns) {
  record(entry, only(number), std::move(request), now_ns);
}

void MessageTable::record_by_slot(Entry& entry, const RankSet& numbers, std::int64_t now_ns) {
  const RankSet fresh = without(numbers, entry.requested);
  if (fresh.empty()) return;
  begin(entry, entry.known_kind, now_ns);
  entry.requested.add(fresh);
  entry.by_slot.add(fresh);
}

void MessageTable::record_by_slot(Entry& entry, int number, std::int64_t now_ns) {
  if (entry.requested.has(number)) return;
  begin(entry, entry.known_kind, now_ns);
  entry.requested.add(number);
  entry.by_slot.add(number);
}

void MessageTable::answer(Entry& entry) {
  if (!entry.requested.empty()) --waiting_;
  entry.requested.clear();
  entry.by_slot.clear();
  entry.in_full.clear();
  entry.sent.clear();
  entry.sent_slot = -1;
  entry.decided = entry.probed = false;
}

void MessageTable::answer(Entry& entry, const RankSet& numbers) {
  if (numbers.contains(entry.requested)) return answer(entry);
  spell_out(entry);
  entry.requested.remove(numbers);
  entry.sent.remove(numbers);
  entry.sent_slot = -1;
  for (Variant& variant : entry.in_full) variant.ranks.remove(numbers);
  const auto left = std::remove_if(entry.in_full.begin(), entry.in_full.end(),
                                   [](const Variant& variant) { return variant.ranks.empty(); });
  entry.in_full.erase(left, entry.in_full.end());
}

void MessageTable::drop_if_empty(Entry& entry) {
  if (entry.slot >= 0 || entry.failure || !entry.requested.empty()) return;
  const auto names = sets_.find(entry.set->id);
  names->second.erase(names->second.find(*entry.name));
  if (names->second.empty() && names->first >= kFirstPair) sets_.erase(names);
}

void MessageTable::assign(Entry& entry, int slot, std::uint64_t version) {
  const auto at = static_cast<std::size_t>(slot);
  if (at >= slots_.size()) slots_.resize(at + 1, nullptr);
  if (Entry* before = slots_[at]; before != nullptr && before != &entry) {
    forget_slot(*before);
    drop_if_empty(*before);
  }
  if (entry.slot >= 0 && entry.slot != slot) forget_slot(entry);
  Variants known = variants_of(entry);
  entry.known = std::move(known);
  entry.slot = slot;
  entry.version = version;
  slots_[at] = &entry;
}

void MessageTable::forget_slot(Entry& entry) {
  if (entry.slot < 0) return;
  spell_out(entry);
  slots_[static_cast<std::size_t>(entry.slot)] = nullptr;
  entry.slot = -1;
  entry.known.clear();
  entry.sizes.clear();
}

void MessageTable::forget_set(int set) {
  const auto names = sets_.find(set);
  if (names == sets_.end()) return;
  for (auto& [name, entry] : names->second) {
    if (entry.slot >= 0) slots_[static_cast<std::size_t>(entry.slot)] = nullptr;
    if (!entry.requested.empty()) --waiting_;
  }
  sets_.erase(names);
}

std::vector<int> MessageTable::slots_of(int set) const {
  std::vector<int> slots;
  const auto names = sets_.find(set);
  if (names == sets_.end()) return slots;
  for (const auto& [name, entry] : names->second) {
    if (entry.slot >= 0) slots.push_back(entry.slot);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

}  // namespace hvd
