#include "engine/controller/stall.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <map>
#include <utility>

#include "engine/controller/negotiate.h"
#include "engine/controller/rank_state.h"

namespace hvd {

namespace {

constexpr std::size_t kMostNames = 6;

std::string seconds_text(std::int64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", static_cast<double>(ns) * 1e-9);
  return text.data();
}

std::string missing_text(const std::vector<Waiting>& stalled, std::int64_t shutdown_ns,
                         std::int64_t now_ns) {
  struct Lacks {
    std::vector<const Waiting*> names;
    bool late = false;
  };
  std::map<int, Lacks> by_rank;
  for (const Waiting& waiting : stalled) {
    for (const int rank : waiting.missing) {
      Lacks& lacks = by_rank[rank];
      lacks.names.push_back(&waiting);
      lacks.late = lacks.late || (shutdown_ns > 0 && now_ns - waiting.since_ns >= shutdown_ns);
    }
  }
  std::string text;
  for (const auto& [rank, lacks] : by_rank) {
    text += "\n" + std::to_string(rank) + (lacks.late ? "!" : "") + ": [";
    for (std::size_t i = 0; i < std::min(lacks.names.size(), kMostNames); ++i) {
      text += (i > 0 ? ", " : "") + lacks.names[i]->name;
    }
    text += lacks.names.size() > kMostNames ? " ...]" : "]";
  }
  return text;
}

std::string waiting_text(const Waiting& waiting, std::int64_t now_ns) {
  std::string text = "\n" + waiting.name;
  if (waiting.set != 0 && waiting.set < kFirstPair)
    text += " of process set " + std::to_string(waiting.set);
  return text + ": " + ranks_text(waiting.requested) + " for " +
         seconds_text(now_ns - waiting.since_ns) + " s";
}

}  // namespace

std::string stall_text(const std::vector<Waiting>& stalled, std::int64_t warning_ns,
                       std::int64_t shutdown_ns, std::int64_t now_ns) {
  std::string text =
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of "
      "ranks and are waiting for remainder of ranks for more than " +
      seconds_text(warning_ns) +
      " seconds. This may indicate that different ranks are trying to submit different tensors or "
      "that only subset of ranks is submitting tensors, which will cause deadlock. \nMissing "
      "ranks:";
  text += missing_text(stalled, shutdown_ns, now_ns) + "\nWaiting ranks:";
  for (std::size_t i = 0; i < std::min(stalled.size(), kMostNames); ++i) {
    text += waiting_text(stalled[i], now_ns);
  }
  if (stalled.size() > kMostNames) {
    text += "\nand " + std::to_string(stalled.size() - kMostNames) + " more";
  }
  return text;
}

Status stalled(const Waiting& waiting, std::int64_t now_ns) {
  return Status::make(Code::kStalled,
                      std::string(name_of(waiting.kind)) + " " + waiting.name + ": " +
                          ranks_text(waiting.requested) + " waited " +
                          seconds_text(now_ns - waiting.since_ns) + " s for " +
                          ranks_text(waiting.missing) +
                          ", which did not request it (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS).",
                      "engine/stall", waiting.missing.front());
}

namespace {

constexpr std::size_t kHead = 3;       // leading sizes of a report, before those of its texts
constexpr std::int64_t kResumed = -1;  // instead of a number of names

constexpr std::size_t kMostPlaces = 4;
constexpr const char* kDiffer =
    "Ranks wait for each other forever, because they request different operations:";
constexpr const char* kEnded = "Ranks wait forever for operations that no other rank will request:";
constexpr const char* kOfCalls =
    ". Call each operation on all ranks of its process set, outside of conditions such as `if rank "
    "== 0:`, with the same name, or in the same order where it has none.";
constexpr const char* kOfMessages =
    ". A send completes when the other rank has called the receive: call them in the opposite "
    "order "
    "on one of the ranks, or use isend and irecv, or batch_isend_irecv.";
constexpr const char* kOfGraphs =
    ". None of them requests anything else before its own has completed. Operations of a graph "
    "(tf.function, jax.jit) must be the same on every rank, and in JAX their order too.";

Status senseless() {
  return Status::make(Code::kInternal, "the report of a blocked rank is inconsistent",
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

std::vector<const Entry*> requested_by(const MessageTable& table, const Entry& join, int number) {
  std::vector<const Entry*> all;
  if (join.requested.has(number)) all.push_back(&join);
  for (const Entry* entry : table.waiting()) {
    if (entry->requested.has(number)) all.push_back(entry);
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

// sizes: time, run, number of names that the rank waits for (-1: it works again), the set of each
// name, the length of every text. name: the texts; the first one is the place.
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
  for (const std::string& part : blocked.may_request) add(part);
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
  blocked.may_request.assign(
      std::make_move_iterator(texts.begin() + 1 + static_cast<std::ptrdiff_t>(waits)),
      std::make_move_iterator(texts.end()));
  return blocked;
}

Entry join_of(const ProcessSet& all_ranks, const RankSet& joined, std::int64_t since_ns) {
  static const std::string kName = kJoinName;
  Entry join;
  join.set = &all_ranks;
  join.name = &kName;
  join.kind = Kind::kJoin;
  join.requested = joined;
  join.since_ns = since_ns;
  return join;
}

bool is_current(const Blocked& blocked, const MessageTable& table, const Entry& join, int own) {
  if (blocked.resumed) return true;
  const std::vector<const Entry*> requests = requested_by(table, join, own);
  return sorted(blocked.waits) == names_of(requests) &&
         std::all_of(requests.begin(), requests.end(),
                     [&](const Entry* entry) { return entry->since_ns <= blocked.at_ns; });
}

bool Deadlocks::is_current(const Report& report, const Requests& requests) const {
  return sorted(report.blocked.waits) == names_of(requests) &&
         std::all_of(requests.begin(), requests.end(), [&](const Entry* entry) {
           return !entry->decided && entry->since_ns <= report.at_ns;
         });
}

bool Deadlocks::may_complete(const Entry& entry, const RankSet& stuck,
                             const RankSet& joined) const {
  RankSet missing = without(entry.set->here, entry.requested);
  if (entry.set->id == 0) missing.remove(joined);
  const std::vector<int> ranks = missing.numbers();
  const auto may = [&](int rank) { return !stuck.has(rank) || may_request(rank, entry); };
  // Any rank may send what a probe waits for.
  return entry.kind == Kind::kProbe ? std::any_of(ranks.begin(), ranks.end(), may)
                                    : std::all_of(ranks.begin(), ranks.end(), may);
}

bool Deadlocks::may_request(int rank, const Entry& entry) const {
  const Blocked& blocked = reports_.at(rank).blocked;
  if (blocked.waits.empty()) return !shares_run(rank, entry);
  const std::vector<std::string>& parts = blocked.may_request;
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return ends_with_part(*entry.name, part); });
}

// A rank that is idle after another cell may receive work while this cell runs.
bool Deadlocks::shares_run(int rank, const Entry& entry) const {
  const std::vector<int> waiting = both(entry.requested, reporting_).numbers();
  return std::all_of(waiting.begin(), waiting.end(), [&](int member) {
    return reports_.at(member).blocked.run == reports_.at(rank).blocked.run;
  });
}

bool Deadlocks::may_proceed(const Requests& requests, const RankSet& stuck,
                            const RankSet& joined) const {
  return std::any_of(requests.begin(), requests.end(),
                     [&](const Entry* entry) { return may_complete(*entry, stuck, joined); });
}

// By rank, for the reports that are still current; drops the others.
std::map<int, Deadlocks::Requests> Deadlocks::current_requests(const MessageTable& table,
                                                               const Entry& join) {
  std::map<int, Requests> all;
  for (auto report = reports_.begin(); report != reports_.end();) {
    std::vector<const Entry*> requests = requested_by(table, join, report->first);
    if (is_current(report->second, requests)) {
      all[report->first] = std::move(requests);
      ++report;
    } else {
      reporting_.remove(report->first);
      report = reports_.erase(report);
    }
  }
  return all;
}

// A rank that waits for an operation that may complete may proceed, and then request anything. The
// reporting rank is checked first: usually it waits for a rank that is merely late.
std::vector<std::pair<const Entry*, Status>> Deadlocks::report(int rank, Blocked blocked,
                                                               const MessageTable& table,
                                                               const Entry& join,
                                                               std::int64_t now_ns) {
  if (blocked.resumed) {
    reports_.erase(rank);
    reporting_.remove(rank);
    return {};
  }
  reports_[rank] = {std::move(blocked), now_ns};
  reporting_.add(rank);
  const RankSet& joined = join.requested;
  if (may_proceed(requested_by(table, join, rank), reporting_, joined)) return {};
  const std::map<int, Requests> requests = current_requests(table, join);
  RankSet stuck = reporting_;
  for (bool changed = true; std::exchange(changed, false);) {
    for (const int member : stuck.numbers()) {
      if (!may_proceed(requests.at(member), stuck, joined)) continue;
      stuck.remove(member);
      changed = true;
    }
  }
  std::vector<const Entry*> all;
  for (const Entry* entry : table.waiting()) {
    if (entry->requested.meets(stuck)) all.push_back(entry);
  }
  if (joined.meets(stuck)) all.push_back(&join);
  std::vector<std::pair<const Entry*, Status>> failed;
  failed.reserve(all.size());
  for (const Entry* entry : all) failed.emplace_back(entry, describe(*entry, all));
  return failed;
}

// " at cell 3:2", of the ranks that have reported where they wait.
std::string Deadlocks::places_of(const Entry& entry) const {
  std::vector<std::string> places;
  for (const int rank : both(entry.requested, reporting_).numbers()) {
    const std::string& place = reports_.at(rank).blocked.place;
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
  bool of_calls = false, of_messages = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    waiting.add(all[i]->requested);
    missing.add(without(all[i]->set->here, all[i]->requested));
    of_messages = of_messages && (all[i]->kind == Kind::kSend || all[i]->kind == Kind::kProbe);
    if (i >= kMostNames) continue;
    const std::string places = places_of(*all[i]);
    of_calls = of_calls || !places.empty();
    text += (i > 0 ? "; " : " ") + ranks_text(all[i]->requested.numbers()) + " for " +
            name_of(all[i]->kind) + " " + *all[i]->name + places;
  }
  if (all.size() > kMostNames) text += "; and more";
  const std::vector<int> ended = both(without(missing, waiting), reporting_).numbers();
  if (!ended.empty())
    text += "; " + ranks_text(ended) + (ended.size() > 1 ? " have" : " has") + " ended the cell";
  const char* const remedy = of_messages ? kOfMessages : of_calls ? kOfCalls : kOfGraphs;
  text = (ended.empty() ? kDiffer : kEnded) + text + remedy;
  const RankSet absent = without(entry.set->here, entry.requested);
  return Status::make(Code::kMismatch, std::move(text), "engine/deadlock",
                      absent.empty() ? -1 : absent.first());
}

}  // namespace hvd
