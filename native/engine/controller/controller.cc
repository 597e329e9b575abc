#include "engine/controller/controller.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/controller/coordinator.h"
#include "engine/controller/response_cache.h"
#include "engine/controller/stall.h"
#include "engine/controller/tree_node.h"
#include "engine/message/request.h"

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
      records_ready_(options.record_ready && rank == 0) {}

void Controller::submit(Request request, std::int64_t now_ns) {
  const int rank = state_.tree().rank();
  if (state_.eager().bound()) {
    eager_held_.push_back({rank, {}, std::move(request), false});
    return void_round();
  }
  record_submission(request.kind);
  if (request.kind == Kind::kLeave) return role_->leave(rank);
  if (request.kind == Kind::kPark) return role_->park(std::move(request), {rank}, now_ns);
  if (request.kind == Kind::kBlocked) return submit_blocked(request, now_ns);
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
    return submit_to_set(*set, std::move(request), now_ns);
  }
  Response response;  // the set was removed after the call was checked
  response.kind = request.kind;
  response.set = request.set;
  response.status = removed_set(request.set);
  response.names = {std::move(request.name)};
  state_.put_on_agenda(std::move(response));
}

void Controller::submit_blocked(const Request& request, std::int64_t now_ns) {
  Result<Blocked> report = blocked_of(request);
  if (!report) return;
  RankSet joined;
  if (state_.has_joined()) joined.add(state_.own());
  for (auto& [set, name] : report.value().waits) {
    if (set == 0 && state_.has_joined() && name == state_.join_name()) name = kJoinName;
  }
  const Entry join = join_of(*state_.sets().find(0), joined, 0);
  if (!is_current(report.value(), state_.table(), join, state_.own())) return;
  std::ignore = role_->blocked(request_of(report.value()), {state_.tree().rank()}, now_ns);
}

void Controller::submit_to_set(const ProcessSet& set, Request request, std::int64_t now_ns) {
  MessageTable& table = state_.table();
  Entry& entry = table.at(set, request.name);
  const Request* known =
      state_.caches() && entry.slot >= 0 ? request_of(entry.known, state_.own()) : nullptr;
  if (known != nullptr && same(*known, request)) {
    table.record_by_slot(entry, state_.own(), now_ns);
  } else {
    table.record(entry, state_.own(), std::move(request), now_ns);
  }
  if (records_ready_) ready_.push_back({0, entry.kind, *entry.name, now_ns});
  role_->on_request(entry, now_ns);
}

void Controller::record_ready(const RankSet& who, const Entry& entry, std::int64_t now_ns) {
  if (!records_ready_) return;
  for (const int rank : both(who, entry.set->here).numbers()) {
    ready_.push_back({rank, entry.kind, *entry.name, now_ns});
  }
}

Status Controller::receive(int from, const std::string& bytes, std::int64_t now_ns) {
  if (state_.eager().bound()) return receive_while_bound(from, bytes, now_ns);
  if (eager_held_.empty() && !is_early(from, bytes)) return receive_from(from, bytes, now_ns);
  eager_held_.push_back({from, bytes, std::nullopt, false});
  return Status::ok();
}

Status Controller::receive_from(int from, const std::string& bytes, std::int64_t now_ns) {
  const Subtree& tree = state_.tree();
  const int place = tree.place_of(from);
  Status status;
  if (place >= 0 && place < tree.children()) {
    status = handle_requests(place, bytes, now_ns);
  } else if (from >= 0 && from == tree.parent()) {
    status = handle_responses(bytes, now_ns);
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

Status Controller::handle_requests(int place, const std::string& bytes, std::int64_t now_ns) {
  Result<RequestList> requests = decode_requests(bytes);
  if (!requests) return requests.status();
  if (const auto position = requests.value().position; position)
    return handle_notice(place, requests.value(), *position, now_ns);
  const std::vector<std::uint64_t>& words = requests.value().slots;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
      const int slot = static_cast<int>(i * 64) + __builtin_ctzll(rest);
      handle_slot(place, slot, requests.value().assignments, now_ns);
    }
  }
  for (RequestMessage& message : requests.value().full) {
    if (Status status = handle_request(place, message, requests.value().changes, now_ns); !status)
      return status;
  }
  return Status::ok();
}

void Controller::handle_slot(int place, int slot, std::uint64_t assignments, std::int64_t now_ns) {
  MessageTable& table = state_.table();
  Entry* entry = table.at_slot(slot);
  const RankSet& below = state_.tree().below(place);
  if (entry == nullptr || entry->version > assignments || !entry->set->here.meets(below)) {
    return children_.again(place, slot, assignments);
  }
  if (state_.tree().is_leaf(place)) {
    table.record_by_slot(*entry, below.first(), now_ns);
  } else {
    table.record_by_slot(*entry, both(entry->set->here, below), now_ns);
  }
  record_ready(below, *entry, now_ns);
  role_->on_request(*entry, now_ns);
}

Status Controller::handle_request(int place, RequestMessage& message, std::uint64_t changes,
                                  std::int64_t now_ns) {
  Result<RankSet> who = senders_of(place, message.ranks);
  if (!who) return who.status();
  if (const auto status = handle_rank_request(message, now_ns); status) return *status;
  return handle_tensor_request(
      message, message.ranks.empty() ? state_.tree().below(place) : who.take(), changes, now_ns);
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

// Handle requests about ranks as such (leave, join, park, blocked). nullopt: the request is about
// tensors, sets or regions.
std::optional<Status> Controller::handle_rank_request(RequestMessage& message,
                                                      std::int64_t now_ns) {
  switch (message.request.kind) {
    case Kind::kLeave:
      for (const int rank : message.ranks) role_->leave(rank);
      return Status::ok();
    case Kind::kJoin:
      role_->join(message.request, message.ranks, now_ns);
      return Status::ok();
    case Kind::kPark:
      role_->park(std::move(message.request), message.ranks, now_ns);
      return Status::ok();
    case Kind::kBlocked:
      return role_->blocked(std::move(message.request), message.ranks, now_ns);
    default:
      return std::nullopt;
  }
}

Status Controller::handle_tensor_request(RequestMessage& message, RankSet who,
                                         std::uint64_t changes, std::int64_t now_ns) {
  // The set has been removed: the sender receives that decision, too.
  const ProcessSet* set = state_.sets().find(message.request.set);
  if (set == nullptr || changes < set->born) return Status::ok();
  // The sender's own engine would have refused such a request: the message is corrupt or forged.
  const auto members = static_cast<std::size_t>(set->size);
  if (Status status = sensible(message.request, members, state_.tree().size()); !status) {
    return Status::make(Code::kInternal, "an invalid request: " + status.message, kRoom);
  }
  who.keep(set->here);
  if (who.empty()) return Status::ok();
  Entry& entry = state_.table().at(*set, message.request.name);
  state_.table().record(entry, who, std::move(message.request), now_ns);
  record_ready(who, entry, now_ns);
  role_->on_request(entry, now_ns);
  return Status::ok();
}

Status Controller::handle_responses(const std::string& bytes, std::int64_t now_ns) {
  send_up();  // the meaning of its slots may change now
  Result<std::vector<Item>> items = decode_responses(bytes);
  if (!items) return items.status();
  for (const Item& item : items.value()) {
    const std::string_view its_bytes =
        std::string_view(bytes).substr(item.begin, item.end - item.begin);
    if (Status status = handle_item(item, its_bytes, now_ns); !status) return status;
  }
  return Status::ok();
}

Status Controller::handle_item(const Item& item, std::string_view bytes, std::int64_t now_ns) {
  switch (item.sort) {
    case Item::Sort::kAgain:
      role_->again(item.slot, item.version);
      return Status::ok();
    case Item::Sort::kCached:
      children_.post(item.slots, bytes);
      return state_.learn(item.slots);
    case Item::Sort::kVoid:
      handle_void(item.version);
      return Status::ok();
    case Item::Sort::kResponse:
      break;
  }
  children_.post(item.message, bytes);
  Status status = state_.learn(item.message);
  if (status) role_->learned(item.message.response, now_ns);
  return status;
}

void Controller::peer_left(int peer, std::int64_t now_ns) {
  if (hold_peer_left(peer, now_ns)) return;
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
  for (Request& request : std::exchange(held_, {})) submit(std::move(request), now_ns);
}

void Controller::send_up() {
  std::string bytes = role_->take_requests();
  if (!bytes.empty()) to_parent_.push_back({state_.tree().parent(), std::move(bytes)});
}

News Controller::poll(std::int64_t now_ns) {
  if (state_.eager().bound()) {
    work_on_round(now_ns);
  } else {
    release_held(now_ns);
    role_->work(now_ns);
  }
  send_up();
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
