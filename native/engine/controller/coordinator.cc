#include "engine/controller/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/controller/mismatch.h"

namespace hvd {
namespace {

constexpr std::int64_t kMostSets = 2'147'483'648;  // so that an id is an int

bool is_change(Kind kind) {
  return kind == Kind::kAddSet || kind == Kind::kRemoveSet || kind == Kind::kAllocate ||
         kind == Kind::kRelease;
}

Response response_to(const Request& request) {
  Response response;
  response.kind = request.kind;
  response.set = request.set;
  response.names = {request.name};
  return response;
}

}  // namespace

Leader::Leader(Node& node, const ConductorOptions& options, Post& post)
    : node_(node),
      options_(options),
      post_(post),
      fuser_(options.fusion_threshold, options.cycle_ns, options.group_fusion),
      order_(options.cache_capacity) {
  if (options.tuner.on) tuner_ = std::make_unique<Tuner>(options.tuner);
  if (options.stall_shutdown_ns > 0 && shutdown_after(options) == 0) {
    warnings_.emplace_back(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is ignored: it is shorter than "
        "HOROVOD_STALL_CHECK_TIME_SECONDS, or the stall check is off.");
  }
}

void Leader::asked(Entry& entry, std::int64_t now_ns) {
  if (entry.decided || (entry.failure && fail_late(entry))) return;
  if (!left_.empty() && entry.set->here.meets(left_)) {
    return fail(entry, shut_down_by(node_.first_left), entry.asked);
  }
  if (!complete(entry)) {
    if (options_.stall_warning_ns > 0) patrol_.start(now_ns + options_.stall_warning_ns);
    return;
  }
  entry.decided = true;
  if (is_change(entry.kind)) return change(entry);
  fuser_.add(agree(entry, node_.joined), now_ns);
}

bool Leader::complete(const Entry& entry) const {
  if (entry.asked.contains(entry.set->here)) return true;
  if (entry.set->id != 0 || node_.joined.empty()) return false;
  RankSet all = entry.asked;
  all.add(node_.joined);
  return all.contains(entry.set->here);
}

// Tells those who come after the others were failed. True: nobody is left who asks.
bool Leader::fail_late(Entry& entry) {
  const RankSet who = both(entry.failure->owed, entry.asked);
  if (who.empty()) return false;
  const Status status = entry.failure->status;
  entry.failure->owed.remove(who);
  const bool all = who.contains(entry.asked);
  if (entry.failure->owed.empty()) entry.failure.reset();
  fail(entry, status, who);
  return all;
}

void Leader::fail(const Entry& entry, const Status& status, const RankSet& who) {
  Verdict verdict;
  verdict.response.kind = entry.kind;
  verdict.response.set = entry.set->id;
  verdict.response.names = {*entry.name};
  verdict.response.status = status;
  verdict.only = who.numbers();
  post_.issue(verdict);
}

void Leader::join(int rank, std::int64_t now_ns) {
  if (!left_.empty()) {
    Verdict verdict;
    verdict.response.kind = Kind::kJoin;
    verdict.response.names = {kJoinName};
    verdict.response.status = shut_down_by(node_.first_left);
    verdict.only = {rank};
    return post_.issue(verdict);
  }
  node_.joined.add(rank);
  last_joined_ = rank;
  for (const Name& name : waiting_names()) {
    Entry* entry = node_.table.find(name.set, name.name);
    if (name.set == 0 && entry != nullptr) asked(*entry, now_ns);
  }
  if (!node_.joined.contains(node_.sets.find(0)->here)) return;
  flush();
  Verdict verdict;
  verdict.response.kind = Kind::kJoin;
  verdict.response.names = {kJoinName};
  verdict.response.rank = last_joined_;
  post_.issue(verdict);
}

void Leader::leave(int rank) {
  if (left_.has(rank)) return;
  flush();
  if (node_.first_left < 0) node_.first_left = rank;
  // Those whose way to rank 0 led through it are cut off.
  left_.add(rank);
  for (int one = rank + 1; one < node_.tree.size(); ++one) {
    if (rank > 0 && node_.tree.leads_through(one, rank)) left_.add(one);
  }
  for (const Name& name : waiting_names()) {
    const Entry* entry = node_.table.find(name.set, name.name);
    if (entry == nullptr || !entry->set->here.meets(left_)) continue;
    fail(*entry, shut_down_by(node_.first_left), entry->asked);
  }
  if (!node_.joined.empty()) {
    for (const int one : RankSet(node_.joined).numbers()) join(one, 0);
  }
  Verdict verdict;
  verdict.response.kind = Kind::kLeave;
  verdict.response.rank = rank;
  post_.issue(verdict);
}

void Leader::park(int rank, bool parked, std::int64_t now_ns) {
  if (parked) {
    parked_.add(rank);
  } else {
    parked_.remove(rank);
    resumed_ns_[rank] = now_ns;
  }
}

void Leader::work(std::int64_t now_ns) {
  if (patrol_.due(now_ns)) inspect(now_ns);
  issue(fuser_.take(now_ns));
  if (tuner_) tune(now_ns);
}

std::int64_t Leader::due_in(std::int64_t now_ns) const {
  const bool waits = node_.table.count_waiting() > 0;
  return sooner(fuser_.due_in(now_ns), waits ? patrol_.due_in(now_ns) : -1);
}

std::vector<std::string> Leader::take_warnings() { return std::exchange(warnings_, {}); }

std::vector<Leader::Name> Leader::waiting_names() const {
  std::vector<Name> names;
  for (const Entry* entry : std::as_const(node_.table).waiting()) {
    if (!entry->decided) names.push_back({entry->set->id, *entry->name});
  }
  return names;
}

void Leader::flush() { issue(fuser_.take_all()); }

void Leader::issue(const std::vector<Fuser::Together>& all) {
  order_.begin_round();
  for (const Fuser::Together& together : all) {
    for (const Agreed& one : together) {
      if (one.slot >= 0) order_.touch(one.slot);
    }
  }
  for (const Fuser::Together& together : all) issue(together);
}

void Leader::issue(const Fuser::Together& together) {
  std::vector<int> slots;
  for (const Agreed& one : together) {
    if (one.slot >= 0) slots.push_back(one.slot);
  }
  if (slots.size() == together.size()) return post_.issue(slots);
  Verdict verdict;
  Response& response = verdict.response;
  const Agreed& first = together.front();
  response = response_to(*first.request);
  response.names.clear();
  response.status = first.status;
  response.shared = first.shared;
  verdict.only = first.only;
  for (const Agreed& one : together) {
    response.names.push_back(one.request->name);
    if (one.absent && response.status) response.absent.push_back(*one.request);
    const Entry* known = one.slot >= 0 ? node_.table.at_slot(one.slot) : nullptr;
    const std::vector<std::int64_t>& sizes = known != nullptr ? known->sizes : one.sizes;
    response.sizes.insert(response.sizes.end(), sizes.begin(), sizes.end());
  }
  if (node_.cache) keep(together, verdict);
  post_.issue(verdict);
}

// Slots for what is worth one.
void Leader::keep(const Fuser::Together& together, Verdict& verdict) {
  verdict.version = node_.assignments + 1;
  verdict.slots.assign(together.size(), -1);
  bool any = false;
  for (std::size_t i = 0; i < together.size(); ++i) {
    const Agreed& one = together[i];
    if (!one.keep) continue;
    const Entry* entry = node_.table.find(one.request->set, one.request->name);
    int slot = entry != nullptr ? entry->slot : -1;
    if (slot >= 0) {
      order_.touch(slot);
    } else {
      slot = order_.take();
    }
    verdict.slots[i] = slot;
    any = any || slot >= 0;
  }
  if (!any) verdict.slots.clear();
  if (!order_.was_full() || std::exchange(warned_of_capacity_, true)) return;
  warnings_.push_back("More than " + std::to_string(order_.capacity()) +
                      " different names are in use: the response cache forgets the oldest ones. "
                      "HOROVOD_CACHE_CAPACITY makes it larger.");
}

// What changes sets and regions takes effect before anything else is agreed on.
void Leader::change(const Entry& entry) {
  const Agreed agreed = agree(entry, node_.joined);
  flush();
  Verdict verdict;
  verdict.response = response_to(*agreed.request);
  verdict.response.status = agreed.status;
  if (agreed.status) change(*agreed.request, verdict.response);
  post_.issue(verdict);
}

Status Leader::check_set(const std::vector<std::int64_t>& ranks) const {
  const char* fault = nullptr;
  if (!node_.sets.valid(ranks)) fault = "Attempted to register process set with invalid ranks: ";
  if (fault == nullptr && node_.sets.same_as(ranks) >= 0) {
    fault = "Attempted to add a duplicate process set: ";
  }
  if (fault == nullptr) return Status::ok();
  return Status::make(Code::kInvalidArgument, fault + shape_text(ranks), "engine/leader");
}

void Leader::change(const Request& request, Response& response) {
  const std::int64_t argument = request.sizes.front();
  switch (request.kind) {
    case Kind::kAddSet:
      response.status = check_set(request.sizes);
      if (!response.status) return;
      response.sizes = {node_.sets.next_id()};
      response.sizes.insert(response.sizes.end(), request.sizes.begin(), request.sizes.end());
      return;
    case Kind::kRemoveSet: {
      const bool there = argument > 0 && argument < kMostSets &&
                         node_.sets.find(static_cast<int>(argument)) != nullptr;
      response.sizes = {argument, there ? 1 : 0};
      if (there) remove_set(static_cast<int>(argument));
      return;
    }
    case Kind::kAllocate:
      response.sizes = {regions_++, argument};
      if (request.on_device()) response.sizes.push_back(1);
      return;
    default:
      response.sizes = {argument};
      return;
  }
}

void Leader::remove_set(int id) {
  for (const Name& name : waiting_names()) {
    const Entry* entry = node_.table.find(name.set, name.name);
    if (name.set == id && entry != nullptr) fail(*entry, removed_set(id), entry->asked);
  }
  for (const int slot : node_.table.slots_of(id)) order_.free(slot);
}

void Leader::inspect(std::int64_t now_ns) {
  patrol_.sleep();
  const std::int64_t shutdown_ns = shutdown_after(options_);
  std::vector<Waiting> late;
  bool report = false;
  for (Entry* entry : node_.table.waiting()) {
    if (entry->decided || now_ns - entry->since_ns < options_.stall_warning_ns) continue;
    late.push_back(node_.waiting(*entry));
    report = report || now_ns - entry->warned_ns >= options_.stall_warning_ns;
  }
  if (report) {
    warnings_.push_back(stall_text(late, options_.stall_warning_ns, shutdown_ns, now_ns));
    for (const Waiting& one : late) node_.table.find(one.set, one.name)->warned_ns = now_ns;
  }
  for (const Waiting& one : late) {
    if (shutdown_ns > 0 && now_ns - stalls_since(one, now_ns) >= shutdown_ns)
      shut_down(one, now_ns);
  }
  for (const Entry* entry : std::as_const(node_.table).waiting()) {
    if (entry->decided) continue;
    std::int64_t next = entry->warned_ns + options_.stall_warning_ns;
    if (shutdown_ns > 0)
      next = std::min(next, stalls_since(node_.waiting(*entry), now_ns) + shutdown_ns);
    patrol_.start_at_latest(next);
  }
}

// From when on it has waited for ranks none of which was at a prompt: a person may take their time.
std::int64_t Leader::stalls_since(const Waiting& waiting, std::int64_t now_ns) const {
  std::int64_t since = waiting.since_ns;
  for (const int rank : waiting.missing) {
    if (parked_.has(rank)) return now_ns;
    const auto resumed = resumed_ns_.find(rank);
    if (resumed != resumed_ns_.end()) since = std::max(since, resumed->second);
  }
  return since;
}

// Fails it for those who wait, and remembers to fail it for those who come later.
void Leader::shut_down(const Waiting& late, std::int64_t now_ns) {
  Entry& entry = *node_.table.find(late.set, late.name);
  const Status status = stalled(late, now_ns);
  const RankSet asked = entry.asked;
  if (!entry.failure) entry.failure = std::make_unique<Failure>();
  entry.failure->status = status;
  for (const int rank : late.missing) entry.failure->owed.add(rank);
  fail(entry, status, asked);
}

// One step of the tuner ends whenever nobody waits any more.
void Leader::tune(std::int64_t now_ns) {
  if (step_bytes_ == 0 || !fuser_.empty() || node_.table.count_waiting() > 0) return;
  const std::optional<Tunables> tunables = tuner_->step(std::exchange(step_bytes_, 0), now_ns);
  if (!tunables) return;
  fuser_.change(tunables->fusion_threshold, tunables->cycle_ns);
  Verdict verdict;
  verdict.response.kind = Kind::kTune;
  verdict.response.tunables = *tunables;
  post_.issue(verdict);
}

}  // namespace hvd
