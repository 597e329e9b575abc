#include "engine/controller/coordinator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/controller/negotiate.h"

namespace hvd {
namespace {

constexpr std::int64_t kMostSets = 2'147'483'648;  // so that an id is an int

bool is_change(Kind kind) {
  return kind == Kind::kAddSet || kind == Kind::kRemoveSet || kind == Kind::kAllocate ||
         kind == Kind::kRelease;
}

// The send is to the probing rank, which has not requested it, and no other probe has returned it.
bool answers(const Entry& send, const Entry& probe) {
  if (send.kind != Kind::kSend || probe.kind != Kind::kProbe) return false;
  if (send.probed || send.decided || send.in_full.size() != 1) return false;
  const Request& request = *send.in_full.front().request;
  const bool only_the_sender =
      send.requested.count() == 1 && send.requested.first() == request.root;
  const int prober = probe.requested.first();
  return only_the_sender && prober != request.root && send.set->here.has(prober) &&
         request.sizes == probe.in_full.front().request->sizes;
}

Response response_to(const Request& request) {
  Response response;
  response.kind = request.kind;
  response.set = request.set;
  response.names = {request.name};
  return response;
}

}  // namespace

Coordinator::Coordinator(RankState& state, Children& children, const ControllerOptions& options)
    : state_(state),
      children_(children),
      options_(options),
      fusion_(options),
      order_(options.cache_capacity) {
  if (options.tuner.on) tuner_ = std::make_unique<Tuner>(options.tuner);
  if (options.stall_shutdown_ns > 0 && shutdown_after(options) == 0) {
    warnings_.emplace_back(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is ignored: it is shorter than "
        "HOROVOD_STALL_CHECK_TIME_SECONDS, or the stall check is off.");
  }
}

void Coordinator::on_request(Entry& entry, std::int64_t now_ns) {
  if (entry.decided || (entry.failure && fail_late(entry))) return;
  if (!left_.empty() && entry.set->here.meets(left_)) {
    return fail(entry, shut_down_by(state_.first_left()), entry.requested);
  }
  if (entry.kind == Kind::kProbe || !state_.complete(entry)) {
    if (options_.stall_warning_ns > 0) stall_timer_.start(now_ns + options_.stall_warning_ns);
    return match(entry);
  }
  entry.decided = true;
  if (is_change(entry.kind)) return change(entry);
  Agreed agreed = agree(entry, state_.joined());
  agreed.queues = agreed.request->on_device() && entry.set->here.has(state_.own());
  fusion_.add(std::move(agreed), now_ns);
}

// Answer a probe with a send, if one of the two is pending and the other is this entry.
void Coordinator::match(Entry& entry) {
  probes_ = probes_ || entry.kind == Kind::kProbe;
  if (!probes_ || (entry.kind != Kind::kProbe && entry.kind != Kind::kSend)) return;
  for (Entry* other : state_.table().waiting()) {
    Entry& probe = entry.kind == Kind::kProbe ? entry : *other;
    Entry& send = entry.kind == Kind::kProbe ? *other : entry;
    if (answers(send, probe)) return answer_probe(probe, send);
  }
}

void Coordinator::answer_probe(const Entry& probe, Entry& send) {
  send.probed = true;
  ResponseMessage message;
  message.response.kind = Kind::kProbe;
  message.response.names = {*probe.name};
  message.response.rank = send.requested.first();
  message.only = {probe.requested.first()};
  issue(message);
}

// A user thread that waits while requests of other ranks are still missing does not hurry what is
// held: more operations may come to be fused with it.
void Coordinator::in_flight(const InFlight& in_flight) {
  in_flight_ = in_flight;
  const auto held = static_cast<int>(fusion_.count());
  in_flight_.awaited = in_flight.awaited && state_.table().count_waiting() <= held;
}

// Fail ranks whose request arrives after the operation was failed for the others. True: no request
// is left.
bool Coordinator::fail_late(Entry& entry) {
  const RankSet ranks = both(entry.failure->owed, entry.requested);
  if (ranks.empty()) return false;
  const Status status = entry.failure->status;
  entry.failure->owed.remove(ranks);
  const bool all = ranks.contains(entry.requested);
  if (entry.failure->owed.empty()) entry.failure.reset();
  fail(entry, status, ranks);
  return all;
}

void Coordinator::fail(const Entry& entry, const Status& status, const RankSet& ranks) {
  ResponseMessage message;
  message.response.kind = entry.kind;
  message.response.set = entry.set->id;
  message.response.names = {*entry.name};
  message.response.status = status;
  message.only = ranks.numbers();
  issue(message);
}

void Coordinator::join(const Request& /*request*/, const std::vector<int>& ranks,
                       std::int64_t now_ns) {
  for (const int rank : ranks) join(rank, now_ns);
}

void Coordinator::join(int rank, std::int64_t now_ns) {
  if (!left_.empty()) {
    ResponseMessage message;
    message.response.kind = Kind::kJoin;
    message.response.names = {kJoinName};
    message.response.status = shut_down_by(state_.first_left());
    message.only = {rank};
    return issue(message);
  }
  if (state_.joined().empty()) joined_since_ns_ = now_ns;
  state_.add_joined(rank);
  last_joined_ = rank;
  for (const Name& name : waiting_names()) {
    Entry* entry = state_.table().find(name.set, name.name);
    if (name.set == 0 && entry != nullptr) on_request(*entry, now_ns);
  }
  if (!state_.joined().contains(state_.sets().find(0)->here)) return;
  flush();
  ResponseMessage message;
  message.response.kind = Kind::kJoin;
  message.response.names = {kJoinName};
  message.response.rank = last_joined_;
  issue(message);
}

void Coordinator::leave(int rank) {
  if (left_.has(rank)) return;
  flush();
  state_.record_left(rank);
  // The ranks below it in the tree are cut off from rank 0.
  left_.add(rank);
  for (int lower = rank + 1; lower < state_.tree().size(); ++lower) {
    if (rank > 0 && state_.tree().leads_through(lower, rank)) left_.add(lower);
  }
  for (const Name& name : waiting_names()) {
    const Entry* entry = state_.table().find(name.set, name.name);
    if (entry == nullptr || !entry->set->here.meets(left_)) continue;
    fail(*entry, shut_down_by(state_.first_left()), entry->requested);
  }
  if (!state_.joined().empty()) {
    for (const int member : RankSet(state_.joined()).numbers()) join(member, 0);
  }
  ResponseMessage message;
  message.response.kind = Kind::kLeave;
  message.response.rank = rank;
  issue(message);
}

void Coordinator::park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) {
  const bool parked = request.sizes.front() != 0;
  for (const int rank : ranks) {
    if (parked) {
      parked_.add(rank);
    } else {
      parked_.remove(rank);
      resumed_ns_[rank] = now_ns;
    }
  }
}

Status Coordinator::blocked(Request request, const std::vector<int>& ranks, std::int64_t now_ns) {
  const Result<Blocked> report = blocked_of(request);
  if (!report) return report.status();
  if (options_.stall_warning_ns <= 0) return Status::ok();
  for (const int rank : ranks) {
    const Entry join = join_of(*state_.sets().find(0), state_.joined(), joined_since_ns_);
    fail_all(deadlocks_.report(rank, report.value(), std::as_const(state_).table(), join, now_ns));
  }
  return Status::ok();
}

void Coordinator::fail_all(const std::vector<std::pair<const Entry*, Status>>& proven) {
  std::vector<std::pair<Name, Status>> failures;  // failing one entry may erase another
  failures.reserve(proven.size());
  for (const auto& [entry, status] : proven) {
    if (entry->kind == Kind::kJoin) {
      fail(*entry, status, entry->requested);
    } else {
      failures.emplace_back(Name{entry->set->id, *entry->name}, status);
    }
  }
  for (const auto& [name, status] : failures) {
    const Entry* entry = state_.table().find(name.set, name.name);
    if (entry != nullptr) fail(*entry, status, entry->requested);
  }
}

void Coordinator::work(std::int64_t now_ns) {
  if (stall_timer_.due(now_ns)) inspect(now_ns);
  issue(fusion_.take(now_ns, in_flight_));
  if (tuner_) tune(now_ns);
}

std::int64_t Coordinator::due_in(std::int64_t now_ns) const {
  const bool waits = state_.table().count_waiting() > 0;
  return sooner(fusion_.due_in(now_ns, in_flight_), waits ? stall_timer_.due_in(now_ns) : -1);
}

std::vector<std::string> Coordinator::take_warnings() { return std::exchange(warnings_, {}); }

std::vector<Coordinator::Name> Coordinator::waiting_names() const {
  std::vector<Name> names;
  for (const Entry* entry : std::as_const(state_.table()).waiting()) {
    if (!entry->decided) names.push_back({entry->set->id, *entry->name});
  }
  return names;
}

void Coordinator::flush() { issue(fusion_.take_all()); }

void Coordinator::issue(const ResponseMessage& message) {
  std::string item;
  append_response(item, message);
  children_.post(message, item);
  obey(state_.learn(message));
}

void Coordinator::issue(const std::vector<int>& slots) {
  std::string item;
  append_cached(item, slots);
  children_.post(slots, item);
  obey(state_.learn(slots));
}

// Rank 0 has contradicted itself: a bug of ours, which stops this engine.
void Coordinator::obey(const Status& status) {
  if (status) return;
  Response response;
  response.kind = Kind::kLeave;
  response.rank = 0;
  response.status = status;
  state_.put_on_agenda(std::move(response));
}

void Coordinator::issue(const std::vector<FusionManager::FusedResponse>& all) {
  order_.begin_round();
  for (const Agreed& held : fusion_.held_on_devices()) {  // their slots must stay assigned
    if (held.slot >= 0) order_.touch(held.slot);
  }
  for (const FusionManager::FusedResponse& fused : all) {
    for (const Agreed& agreed : fused) {
      if (agreed.slot >= 0) order_.touch(agreed.slot);
    }
  }
  for (const FusionManager::FusedResponse& fused : all) issue(fused);
}

void Coordinator::issue(const FusionManager::FusedResponse& fused) {
  std::vector<int> slots;
  for (const Agreed& agreed : fused) {
    if (agreed.slot >= 0) slots.push_back(agreed.slot);
  }
  if (slots.size() == fused.size()) return issue(slots);
  ResponseMessage message;
  Response& response = message.response;
  const Agreed& first = fused.front();
  response = response_to(*first.request);
  response.names.clear();
  response.status = first.status;
  response.shared = first.shared;
  message.only = first.only;
  for (const Agreed& agreed : fused) {
    response.names.push_back(agreed.request->name);
    if (agreed.absent && response.status) response.absent.push_back(*agreed.request);
    const Entry* known = agreed.slot >= 0 ? state_.table().at_slot(agreed.slot) : nullptr;
    const std::vector<std::int64_t>& sizes = known != nullptr ? known->sizes : agreed.sizes;
    response.sizes.insert(response.sizes.end(), sizes.begin(), sizes.end());
  }
  if (state_.caches()) keep(fused, message);
  issue(message);
}

void Coordinator::used(int slot) {
  order_.begin_round();
  order_.touch(slot);
}

// Assign slots to the operations that are worth one.
void Coordinator::keep(const FusionManager::FusedResponse& fused, ResponseMessage& message) {
  message.version = state_.assignments() + 1;
  message.slots.assign(fused.size(), -1);
  bool any = false;
  for (std::size_t i = 0; i < fused.size(); ++i) {
    const Agreed& agreed = fused[i];
    if (!agreed.keep) continue;
    const Entry* entry = state_.table().find(agreed.request->set, agreed.request->name);
    int slot = entry != nullptr ? entry->slot : -1;
    if (slot >= 0) {
      order_.touch(slot);
    } else {
      slot = order_.allocate();
    }
    message.slots[i] = slot;
    any = any || slot >= 0;
  }
  if (!any) message.slots.clear();
  if (!order_.was_full() || std::exchange(warned_of_capacity_, true)) return;
  warnings_.push_back("More than " + std::to_string(order_.capacity()) +
                      " different names are in use: the response cache forgets the oldest ones. "
                      "HOROVOD_CACHE_CAPACITY makes it larger.");
}

// Changes of process sets and regions take effect before anything else is agreed on.
void Coordinator::change(const Entry& entry) {
  const Agreed agreed = agree(entry, state_.joined());
  flush();
  ResponseMessage message;
  message.response = response_to(*agreed.request);
  message.response.status = agreed.status;
  if (agreed.status) change(*agreed.request, message.response);
  issue(message);
}

Status Coordinator::check_set(const std::vector<std::int64_t>& ranks) const {
  const char* fault = nullptr;
  if (!state_.sets().valid(ranks)) fault = "Attempted to register process set with invalid ranks: ";
  if (fault == nullptr && state_.sets().same_as(ranks) >= 0) {
    fault = "Attempted to add a duplicate process set: ";
  }
  if (fault == nullptr) return Status::ok();
  return Status::make(Code::kInvalidArgument, fault + shape_text(ranks), "engine/coordinator");
}

void Coordinator::change(const Request& request, Response& response) {
  const std::int64_t argument = request.sizes.front();
  switch (request.kind) {
    case Kind::kAddSet:
      response.status = check_set(request.sizes);
      if (!response.status) return;
      response.sizes = {state_.sets().next_id()};
      response.sizes.insert(response.sizes.end(), request.sizes.begin(), request.sizes.end());
      return;
    case Kind::kRemoveSet: {
      const bool exists = argument > 0 && argument < kMostSets &&
                          state_.sets().find(static_cast<int>(argument)) != nullptr;
      response.sizes = {argument, exists ? 1 : 0};
      if (exists) remove_set(static_cast<int>(argument));
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

void Coordinator::remove_set(int id) {
  for (const Name& name : waiting_names()) {
    const Entry* entry = state_.table().find(name.set, name.name);
    if (name.set == id && entry != nullptr) fail(*entry, removed_set(id), entry->requested);
  }
  for (const int slot : state_.table().slots_of(id)) order_.free(slot);
}

void Coordinator::inspect(std::int64_t now_ns) {
  stall_timer_.sleep();
  const std::int64_t shutdown_ns = shutdown_after(options_);
  std::vector<Waiting> late;
  bool report = false;
  for (Entry* entry : state_.table().waiting()) {
    if (entry->decided || now_ns - entry->since_ns < options_.stall_warning_ns) continue;
    late.push_back(state_.waiting(*entry));
    report = report || now_ns - entry->warned_ns >= options_.stall_warning_ns;
  }
  if (report) {
    warnings_.push_back(stall_text(late, options_.stall_warning_ns, shutdown_ns, now_ns));
    for (const Waiting& stalled : late) {
      state_.table().find(stalled.set, stalled.name)->warned_ns = now_ns;
    }
  }
  for (const Waiting& stalled : late) {
    if (shutdown_ns > 0 && now_ns - stalls_since(stalled, now_ns) >= shutdown_ns)
      shut_down(stalled, now_ns);
  }
  for (const Entry* entry : std::as_const(state_.table()).waiting()) {
    if (entry->decided) continue;
    std::int64_t next = entry->warned_ns + options_.stall_warning_ns;
    if (shutdown_ns > 0)
      next = std::min(next, stalls_since(state_.waiting(*entry), now_ns) + shutdown_ns);
    stall_timer_.start_at_latest(next);
  }
}

// Since when it waits while no missing rank is at a prompt: time at a prompt is not a stall.
std::int64_t Coordinator::stalls_since(const Waiting& waiting, std::int64_t now_ns) const {
  std::int64_t since = waiting.since_ns;
  for (const int rank : waiting.missing) {
    if (parked_.has(rank)) return now_ns;
    const auto resumed = resumed_ns_.find(rank);
    if (resumed != resumed_ns_.end()) since = std::max(since, resumed->second);
  }
  return since;
}

// Fail the operation for the waiting ranks, and remember to fail it for late ones.
void Coordinator::shut_down(const Waiting& late, std::int64_t now_ns) {
  Entry& entry = *state_.table().find(late.set, late.name);
  const Status status = stalled(late, now_ns);
  const RankSet requested = entry.requested;
  if (!entry.failure) entry.failure = std::make_unique<Failure>();
  entry.failure->status = status;
  for (const int rank : late.missing) entry.failure->owed.add(rank);
  fail(entry, status, requested);
}

// A step of the tuner ends when no rank waits.
void Coordinator::tune(std::int64_t now_ns) {
  if (step_bytes_ == 0 || !fusion_.empty() || state_.table().count_waiting() > 0) return;
  const std::optional<Tunables> tunables = tuner_->step(std::exchange(step_bytes_, 0), now_ns);
  if (!tunables) return;
  fusion_.change(tunables->fusion_threshold, tunables->cycle_ns);
  ResponseMessage message;
  message.response.kind = Kind::kTune;
  message.response.tunables = *tunables;
  issue(message);
}

}  // namespace hvd
