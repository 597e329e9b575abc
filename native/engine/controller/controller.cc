#include "engine/controller/controller.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/controller/coordinator.h"
#include "engine/controller/deadlock.h"
#include "engine/controller/response_cache.h"
#include "engine/controller/tree_node.h"
#include "engine/message/validate.h"

namespace hvd {
namespace {

const char* const kRoom = "engine/controller";

std::unique_ptr<Role> role_of(RankState& state, Children& children,
                              const ControllerOptions& options) {
  if (state.is_root()) return std::make_unique<Coordinator>(state, children, options);
  const std::int64_t warning = options.stall_warning_ns;
  return std::make_unique<TreeNode>(state, warning > 0 ? warning / 2 : -1);
}

}  // namespace

Controller::Controller(int rank, int size, const ControllerOptions& options)
    : state_(rank, size, std::max(1, options.fanout)),
      children_(state_),
      role_(role_of(state_, children_, options)),
      notes_ready_(options.note_ready && rank == 0) {}

void Controller::ask(Request request, std::int64_t now_ns) {
  const int rank = state_.tree().rank();
  if (state_.eager().bound()) {
    eager_held_.push_back({rank, {}, std::move(request), false});
    return void_round();
  }
  note_ask(request.kind);
  if (request.kind == Kind::kLeave) return role_->leave(rank);
  if (request.kind == Kind::kPark) return role_->park(std::move(request), {rank}, now_ns);
  if (request.kind == Kind::kBlocked) return ask_blocked(std::move(request), now_ns);
  if (state_.has_joined() && request.set == 0) {
    held_.push_back(std::move(request));
    return;
  }
  if (request.kind == Kind::kJoin) {
    state_.join_as(std::exchange(request.name, kJoinName));
    return role_->join(request, {rank}, now_ns);
  }
  if (request.kind == Kind::kAddSet) std::sort(request.sizes.begin(), request.sizes.end());
  const ProcessSet* set = state_.sets().find(request.set);
  if (set != nullptr && set->here.has(state_.own())) {
    return ask_of_set(*set, std::move(request), now_ns);
  }
  Response response;  // removed since the call was checked
  response.kind = request.kind;
  response.set = request.set;
  response.status = removed_set(request.set);
  response.names = {std::move(request.name)};
  state_.put_on_agenda(std::move(response));
}

void Controller::ask_blocked(Request request, std::int64_t now_ns) {
  const Result<Blocked> said = blocked_of(request);
  if (!said || !holds(said.value(), state_.table(), state_.own())) return;
  std::ignore = role_->blocked(std::move(request), {state_.tree().rank()}, now_ns);
}

void Controller::ask_of_set(const ProcessSet& set, Request request, std::int64_t now_ns) {
  MessageTable& table = state_.table();
  Entry& entry = table.at(set, request.name);
  const Request* known =
      state_.caches() && entry.slot >= 0 ? request_of(entry.known, state_.own()) : nullptr;
  if (known != nullptr && same(*known, request)) {
    table.ask_known(entry, state_.own(), now_ns);
  } else {
    table.ask(entry, state_.own(), std::move(request), now_ns);
  }
  if (notes_ready_) ready_.push_back({0, entry.kind, *entry.name, now_ns});
  role_->asked(entry, now_ns);
}

void Controller::note_ready(const RankSet& who, const Entry& entry, std::int64_t now_ns) {
  if (!notes_ready_) return;
  for (const int rank : both(who, entry.set->here).numbers()) {
    ready_.push_back({rank, entry.kind, *entry.name, now_ns});
  }
}

Status Controller::hear(int from, const std::string& bytes, std::int64_t now_ns) {
  if (state_.eager().bound()) return hear_while_bound(from, bytes, now_ns);
  if (eager_held_.empty() && !comes_later(from, bytes)) return hear_from(from, bytes, now_ns);
  eager_held_.push_back({from, bytes, std::nullopt, false});
  return Status::ok();
}

Status Controller::hear_from(int from, const std::string& bytes, std::int64_t now_ns) {
  const Subtree& tree = state_.tree();
  const int place = tree.place_of(from);
  Status status;
  if (place >= 0 && place < tree.children()) {
    status = hear_requests(place, bytes, now_ns);
  } else if (from >= 0 && from == tree.parent()) {
    status = hear_responses(bytes, now_ns);
  } else {
    status = Status::make(
        Code::kInternal,
        "a control message came from a rank that is neither parent nor child in the tree", kRoom);
  }
  if (!status) {
    status.message += " (message of rank " + std::to_string(from) + ")";
    status.rank = from;
  }
  return status;
}

Status Controller::hear_requests(int place, const std::string& bytes, std::int64_t now_ns) {
  Result<RequestList> requests = decode_requests(bytes);
  if (!requests) return requests.status();
  if (const auto position = requests.value().position; position)
    return hear_notice(place, requests.value(), *position, now_ns);
  const std::vector<std::uint64_t>& words = requests.value().slots;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
      const int slot = static_cast<int>(i * 64) + __builtin_ctzll(rest);
      hear_slot(place, slot, requests.value().assignments, now_ns);
    }
  }
  for (RequestMessage& ask : requests.value().full) {
    if (Status status = hear_request(place, ask, requests.value().changes, now_ns); !status)
      return status;
  }
  return Status::ok();
}

void Controller::hear_slot(int place, int slot, std::uint64_t assignments, std::int64_t now_ns) {
  MessageTable& table = state_.table();
  Entry* entry = table.at_slot(slot);
  const RankSet& below = state_.tree().below(place);
  if (entry == nullptr || entry->version > assignments || !entry->set->here.meets(below)) {
    return children_.again(place, slot, assignments);
  }
  if (state_.tree().is_leaf(place)) {
    table.ask_known(*entry, below.first(), now_ns);
  } else {
    table.ask_known(*entry, both(entry->set->here, below), now_ns);
  }
  note_ready(below, *entry, now_ns);
  role_->asked(*entry, now_ns);
}

Status Controller::hear_request(int place, RequestMessage& ask, std::uint64_t changes,
                                std::int64_t now_ns) {
  Result<RankSet> who = senders_of(place, ask.ranks);
  if (!who) return who.status();
  if (const auto status = hear_of_ranks(ask, now_ns); status) return *status;
  return hear_of_tensors(ask, ask.ranks.empty() ? state_.tree().below(place) : who.take(), changes,
                         now_ns);
}

Result<RankSet> Controller::senders_of(int place, const std::vector<int>& ranks) const {
  RankSet who;
  for (const int rank : ranks) {
    const int number = state_.tree().number_of(rank);
    if (number < 0 || !state_.tree().below(place).has(number)) {
      return Status::make(
          Code::kInternal,
          "a request of rank " + std::to_string(rank) + " came from a rank outside its subtree",
          kRoom);
    }
    who.add(number);
  }
  return who;
}

// What ranks are up to, whatever their sets. Nothing: it is about tensors, sets or regions.
std::optional<Status> Controller::hear_of_ranks(RequestMessage& ask, std::int64_t now_ns) {
  switch (ask.request.kind) {
    case Kind::kLeave:
      for (const int rank : ask.ranks) role_->leave(rank);
      return Status::ok();
    case Kind::kJoin:
      role_->join(ask.request, ask.ranks, now_ns);
      return Status::ok();
    case Kind::kPark:
      role_->park(std::move(ask.request), ask.ranks, now_ns);
      return Status::ok();
    case Kind::kBlocked:
      return role_->blocked(std::move(ask.request), ask.ranks, now_ns);
    default:
      return std::nullopt;
  }
}

Status Controller::hear_of_tensors(RequestMessage& ask, RankSet who, std::uint64_t changes,
                                   std::int64_t now_ns) {
  // Of a set that has been removed: its sender learns of that.
  const ProcessSet* set = state_.sets().find(ask.request.set);
  if (set == nullptr || changes < set->born) return Status::ok();
  // No rank asks for that: its own engine would have refused it. Somebody lies.
  const auto members = static_cast<std::size_t>(set->size);
  if (Status status = sensible(ask.request, members, state_.tree().size()); !status) {
    return Status::make(Code::kInternal, "an invalid request: " + status.message, kRoom);
  }
  who.keep(set->here);
  if (who.empty()) return Status::ok();
  Entry& entry = state_.table().at(*set, ask.request.name);
  state_.table().ask(entry, who, std::move(ask.request), now_ns);
  note_ready(who, entry, now_ns);
  role_->asked(entry, now_ns);
  return Status::ok();
}

Status Controller::hear_responses(const std::string& bytes, std::int64_t now_ns) {
  hand_up();  // what its slots mean may change now
  Result<std::vector<Item>> items = decode_responses(bytes);
  if (!items) return items.status();
  for (const Item& item : items.value()) {
    const std::string_view its_bytes =
        std::string_view(bytes).substr(item.begin, item.end - item.begin);
    if (Status status = hear_item(item, its_bytes, now_ns); !status) return status;
  }
  return Status::ok();
}

Status Controller::hear_item(const Item& item, std::string_view bytes, std::int64_t now_ns) {
  switch (item.sort) {
    case Item::Sort::kAgain:
      role_->again(item.slot, item.version);
      return Status::ok();
    case Item::Sort::kCached:
      children_.post(item.slots, bytes);
      return state_.learn(item.slots);
    case Item::Sort::kVoid:
      hear_void(item.version);
      return Status::ok();
    case Item::Sort::kResponse:
      break;
  }
  children_.post(item.message, bytes);
  Status status = state_.learn(item.message);
  if (status) role_->learned(item.message.response, now_ns);
  return status;
}

void Controller::gone(int peer, std::int64_t now_ns) {
  if (hold_gone(peer, now_ns)) return;
  const Subtree& tree = state_.tree();
  if (peer == tree.parent()) return state_.end(peer);
  const int place = tree.place_of(peer);
  if (place >= 0 && place < tree.children() && children_.close(place)) role_->leave(peer);
}

void Controller::carried_out(std::int64_t bytes, std::int64_t /*now_ns*/) {
  role_->carried_out(bytes);
}

void Controller::release_held(std::int64_t now_ns) {
  if (held_.empty() || state_.has_joined()) return;
  for (Request& request : std::exchange(held_, {})) ask(std::move(request), now_ns);
}

void Controller::hand_up() {
  std::string bytes = role_->take_requests();
  if (!bytes.empty()) to_parent_.push_back({state_.tree().parent(), std::move(bytes)});
}

News Controller::take(std::int64_t now_ns) {
  if (state_.eager().bound()) {
    work_on_round(now_ns);
  } else {
    release_held(now_ns);
    role_->work(now_ns);
  }
  hand_up();
  News news;
  news.warnings = role_->take_warnings();
  news.outgoing = std::exchange(to_parent_, {});
  children_.take(news.outgoing);
  state_.take_agenda(news);
  news.ready = std::exchange(ready_, {});
  return news;
}

bool Controller::has_news() const {
  return !to_parent_.empty() || state_.has_agenda() || !ready_.empty() ||
         (!held_.empty() && !state_.has_joined()) || role_->has_requests() || !children_.empty();
}

std::int64_t Controller::due_in(std::int64_t now_ns) const {
  if (has_news()) return 0;
  return state_.eager().bound() ? round_due_in(now_ns) : role_->due_in(now_ns);
}

bool Controller::idle() const {
  return state_.table().count_waiting() == 0 && state_.joined().empty() && held_.empty() &&
         eager_held_.empty() && role_->idle();
}

std::vector<Waiting> Controller::waiting() const {
  std::vector<Waiting> all;
  for (const Entry* entry : state_.table().waiting()) {
    Waiting waiting = state_.waiting(*entry);
    if (!entry->decided && !waiting.missing.empty()) all.push_back(std::move(waiting));
  }
  return all;
}

std::vector<int> Controller::ranks_of(int set) const {
  std::vector<int> ranks;
  const ProcessSet* found = state_.sets().find(set);
  for (int group_rank = 0; found != nullptr && group_rank < found->size; ++group_rank) {
    ranks.push_back(found->rank_at(group_rank));
  }
  return ranks;
}

}  // namespace hvd
