#include "engine/controller/deadlock.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "engine/controller/mismatch.h"

namespace hvd {
namespace {

constexpr std::size_t kMostNames = 6;
constexpr std::size_t kHead = 3;       // of the sizes of a report: before those of its texts
constexpr std::int64_t kResumed = -1;  // instead of a number of names

constexpr std::size_t kMostPlaces = 4;
constexpr const char* kDiffer =
    "Ranks wait for each other for ever, because they ask for different operations:";
constexpr const char* kEnded =
    "Ranks wait for ever for operations that no other rank will ask for any more:";
constexpr const char* kOfCalls =
    ". Call each operation on all ranks of its process set, outside of conditions such as `if rank "
    "== 0:`, with the same name, or in the same order where it has none.";
constexpr const char* kOfGraphs =
    ". None of them asks for anything else before its own has ended. Operations of a graph "
    "(tf.function, jax.jit) must be the same on every rank, and in JAX their order too.";

Status senseless() {
  return Status::make(Code::kInternal, "what a blocked rank says does not fit together",
                      "engine/deadlock");
}

NamesInSets sorted(NamesInSets names) {
  std::sort(names.begin(), names.end());
  return names;
}

NamesInSets names_of(const std::vector<const Entry*>& entries) {
  NamesInSets names;
  for (const Entry* entry : entries) names.emplace_back(entry->set->id, *entry->name);
  return sorted(std::move(names));
}

std::vector<const Entry*> asked_by(const MessageTable& table, int number) {
  std::vector<const Entry*> all;
  for (const Entry* entry : table.waiting()) {
    if (entry->asked.has(number)) all.push_back(entry);
  }
  return all;
}

bool ends_with_part(const std::string& name, const std::string& part) {
  const std::size_t length = std::min(name.find('#'), name.size());
  if (length < part.size() || name.compare(length - part.size(), part.size(), part) != 0)
    return false;
  return length == part.size() || name[length - part.size() - 1] == '/';
}

}  // namespace

// sizes: when, the run, how many names it waits for (-1: it works again), the set of each, the
// length of every text; name: the texts, of which the first is the place.
Request request_of(const Blocked& blocked) {
  Request request;
  request.kind = Kind::kBlocked;
  if (blocked.resumed) {
    request.sizes = {blocked.at_ns, blocked.run, kResumed};
    return request;
  }
  request.sizes = {blocked.at_ns, blocked.run, static_cast<std::int64_t>(blocked.waits.size())};
  for (const auto& [set, name] : blocked.waits) request.sizes.push_back(set);
  const auto add = [&request](const std::string& text) {
    request.sizes.push_back(static_cast<std::int64_t>(text.size()));
    request.name += text;
  };
  add(blocked.place);
  for (const auto& [set, name] : blocked.waits) add(name);
  for (const std::string& part : blocked.may_ask) add(part);
  return request;
}

Result<Blocked> blocked_of(const Request& request) {
  const std::vector<std::int64_t>& sizes = request.sizes;
  Blocked blocked;
  if (sizes.size() < kHead) return senseless();
  blocked.at_ns = sizes[0];
  blocked.run = sizes[1];
  if (sizes.size() == kHead && sizes[2] == kResumed && request.name.empty()) {
    blocked.resumed = true;
    return blocked;
  }
  if (sizes[2] < 0) return senseless();
  const auto waits = static_cast<std::size_t>(sizes[2]);
  if (sizes.size() == kHead || waits > (sizes.size() - kHead - 1) / 2) return senseless();
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (std::size_t i = kHead + waits; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || static_cast<std::size_t>(sizes[i]) > request.name.size() - at)
      return senseless();
    const auto length = static_cast<std::size_t>(sizes[i]);
    texts.push_back(request.name.substr(at, length));
    at += length;
  }
  if (at != request.name.size()) return senseless();
  blocked.place = std::move(texts[0]);
  for (std::size_t i = 0; i < waits; ++i)
    blocked.waits.emplace_back(static_cast<int>(sizes[kHead + i]), std::move(texts[1 + i]));
  blocked.may_ask.assign(
      std::make_move_iterator(texts.begin() + 1 + static_cast<std::ptrdiff_t>(waits)),
      std::make_move_iterator(texts.end()));
  return blocked;
}

bool holds(const Blocked& blocked, const MessageTable& table, int own) {
  if (blocked.resumed) return true;
  const std::vector<const Entry*> asked = asked_by(table, own);
  return sorted(blocked.waits) == names_of(asked) &&
         std::all_of(asked.begin(), asked.end(),
                     [&](const Entry* entry) { return entry->since_ns <= blocked.at_ns; });
}

bool Deadlocks::holds(const Word& word, const std::vector<const Entry*>& asked) const {
  return sorted(word.blocked.waits) == names_of(asked) &&
         std::all_of(asked.begin(), asked.end(), [&](const Entry* entry) {
           return !entry->decided && entry->since_ns <= word.at_ns;
         });
}

bool Deadlocks::may_come(const Entry& entry, const RankSet& stuck, const RankSet& joined) const {
  RankSet missing = without(entry.set->here, entry.asked);
  if (entry.set->id == 0) missing.remove(joined);
  const std::vector<int> ranks = missing.numbers();
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return !stuck.has(rank) || may_ask(rank, entry); });
}

bool Deadlocks::may_ask(int rank, const Entry& entry) const {
  const Blocked& blocked = words_.at(rank).blocked;
  if (blocked.waits.empty()) return !shares_run(rank, entry);
  const std::vector<std::string>& parts = blocked.may_ask;
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return ends_with_part(*entry.name, part); });
}

// A rank that is idle after another cell may be given work while this cell runs.
bool Deadlocks::shares_run(int rank, const Entry& entry) const {
  const std::vector<int> waiting = both(entry.asked, spoken_).numbers();
  return std::all_of(waiting.begin(), waiting.end(), [&](int one) {
    return words_.at(one).blocked.run == words_.at(rank).blocked.run;
  });
}

bool Deadlocks::may_go_on(const std::vector<const Entry*>& asked, const RankSet& stuck,
                          const RankSet& joined) const {
  return std::any_of(asked.begin(), asked.end(),
                     [&](const Entry* entry) { return may_come(*entry, stuck, joined); });
}

// Of those whose word still holds.
Deadlocks::Asked Deadlocks::asked_by_all(const MessageTable& table) {
  Asked all;
  for (auto word = words_.begin(); word != words_.end();) {
    std::vector<const Entry*> asked = asked_by(table, word->first);
    if (holds(word->second, asked)) {
      all[word->first] = std::move(asked);
      ++word;
    } else {
      spoken_.remove(word->first);
      word = words_.erase(word);
    }
  }
  return all;
}

// Whoever waits for something that may come may go on, and ask for anything then. The one who has
// just spoken is looked at first: as a rule it waits for a rank that is only late.
std::vector<std::pair<const Entry*, Status>> Deadlocks::say(int rank, Blocked blocked,
                                                            const MessageTable& table,
                                                            const RankSet& joined,
                                                            std::int64_t now_ns) {
  if (blocked.resumed) {
    words_.erase(rank);
    spoken_.remove(rank);
    return {};
  }
  words_[rank] = {std::move(blocked), now_ns};
  spoken_.add(rank);
  if (may_go_on(asked_by(table, rank), spoken_, joined)) return {};
  const Asked asked = asked_by_all(table);
  RankSet stuck = spoken_;
  for (bool changed = true; std::exchange(changed, false);) {
    for (const int one : stuck.numbers()) {
      if (!may_go_on(asked.at(one), stuck, joined)) continue;
      stuck.remove(one);
      changed = true;
    }
  }
  std::vector<const Entry*> all;
  for (const Entry* entry : table.waiting()) {
    if (entry->asked.meets(stuck)) all.push_back(entry);
  }
  std::vector<std::pair<const Entry*, Status>> failed;
  failed.reserve(all.size());
  for (const Entry* entry : all) failed.emplace_back(entry, describe(*entry, all));
  return failed;
}

// " at cell 3:2", of the ranks that have reported where they wait.
std::string Deadlocks::places_of(const Entry& entry) const {
  std::vector<std::string> places;
  for (const int rank : both(entry.asked, spoken_).numbers()) {
    const std::string& place = words_.at(rank).blocked.place;
    if (!place.empty() && std::find(places.begin(), places.end(), place) == places.end())
      places.push_back(place);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(places.size(), kMostPlaces); ++i)
    text += (i > 0 ? ", " : " at ") + places[i];
  return text;
}

Status Deadlocks::describe(const Entry& entry, const std::vector<const Entry*>& all) const {
  std::string text;
  RankSet waiting;
  RankSet missing;
  bool of_calls = false;
  for (std::size_t i = 0; i < all.size(); ++i) {
    waiting.add(all[i]->asked);
    missing.add(without(all[i]->set->here, all[i]->asked));
    if (i >= kMostNames) continue;
    const std::string places = places_of(*all[i]);
    of_calls = of_calls || !places.empty();
    text += (i > 0 ? "; " : " ") + ranks_text(all[i]->asked.numbers()) + " for " +
            name_of(all[i]->kind) + " " + *all[i]->name + places;
  }
  if (all.size() > kMostNames) text += "; and more";
  const std::vector<int> ended = both(without(missing, waiting), spoken_).numbers();
  if (!ended.empty())
    text += "; " + ranks_text(ended) + (ended.size() > 1 ? " have" : " has") + " ended the cell";
  text = (ended.empty() ? kDiffer : kEnded) + text + (of_calls ? kOfCalls : kOfGraphs);
  const RankSet absent = without(entry.set->here, entry.asked);
  return Status::make(Code::kMismatch, std::move(text), "engine/deadlock",
                      absent.empty() ? -1 : absent.first());
}

}  // namespace hvd
