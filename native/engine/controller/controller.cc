#include "engine/controller/controller.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/controller/coordinator.h"
#include "engine/controller/deadlock.h"
#include "engine/controller/rank_state.h"
#include "engine/controller/response_cache.h"
#include "engine/controller/tree_node.h"
#include "engine/message/validate.h"
#include "engine/message/wire.h"

namespace hvd {

struct Controller::Impl : ResponseSink {
  // What goes to one child with the next letter.
  struct Outbox {
    std::string items;
    std::size_t count = 0;
    bool closed = false;
  };

  Impl(int rank, int size, const ControllerOptions& options);

  void ask(Request request, std::int64_t now_ns);
  void ask_of_set(const ProcessSet& set, Request request, std::int64_t now_ns);
  void asked(Entry& entry, std::int64_t now_ns);
  void leave(int rank);
  void park(Request request, const std::vector<int>& ranks, std::int64_t now_ns);
  Status blocked(Request request, const std::vector<int>& ranks, std::int64_t now_ns);
  void gone(int peer);

  Status hear_requests(int place, const std::string& bytes, std::int64_t now_ns);
  void hear_slot(int place, int slot, std::uint64_t assignments, std::int64_t now_ns);
  Status hear_request(int place, RequestMessage& ask, std::uint64_t changes, std::int64_t now_ns);
  Status hear_responses(const std::string& bytes, std::int64_t now_ns);
  Status hear_item(const Item& item, const std::string& bytes, std::int64_t now_ns);
  void after(const ResponseMessage& message, std::int64_t now_ns);
  void release_held(std::int64_t now_ns);

  void issue(const ResponseMessage& message) override;
  void issue(const std::vector<int>& slots) override;
  bool concerns(int place, const ResponseMessage& message) const;
  bool concerns(int place, const ProcessSet* set) const;
  void post(int place, const std::string& item);
  void obey(const Status& status);

  void hand_up();
  News take(std::int64_t now_ns);
  bool has_news() const;
  void note(const RankSet& who, const Entry& entry, std::int64_t now_ns);

  RankState state;
  std::unique_ptr<Coordinator> coordinator;  // rank 0
  std::unique_ptr<TreeNode> tree_node;       // the others
  std::vector<Outbox> children;
  std::vector<OutgoingMessage> outgoing;
  std::vector<Request> held;  // what a rank that has joined asks for waits until all have
  bool note_ready;
  std::vector<Ready> ready;
};

Controller::Impl::Impl(int rank, int size, const ControllerOptions& options)
    : state(rank, size, std::max(1, options.fanout)),
      children(static_cast<std::size_t>(state.tree.children())),
      note_ready(options.note_ready && rank == 0) {
  if (rank == 0) {
    coordinator = std::make_unique<Coordinator>(state, options, *this);
  } else {
    const std::int64_t warning = options.stall_warning_ns;
    tree_node = std::make_unique<TreeNode>(state, warning > 0 ? warning / 2 : -1);
  }
}

void Controller::Impl::ask(Request request, std::int64_t now_ns) {
  const int rank = state.tree.rank();
  if (request.kind == Kind::kLeave) return leave(rank);
  if (request.kind == Kind::kPark) return park(std::move(request), {rank}, now_ns);
  if (request.kind == Kind::kBlocked) {
    const Result<Blocked> said = blocked_of(request);
    if (said && holds(said.value(), state.table, state.own())) {
      std::ignore = blocked(std::move(request), {rank}, now_ns);
    }
    return;
  }
  if (!state.join_name.empty() && request.set == 0) {
    held.push_back(std::move(request));
    return;
  }
  if (request.kind == Kind::kJoin) {
    state.join_name = std::exchange(request.name, kJoinName);
    return coordinator ? coordinator->join(rank, now_ns) : tree_node->join(request, {rank}, now_ns);
  }
  if (request.kind == Kind::kAddSet) std::sort(request.sizes.begin(), request.sizes.end());
  const ProcessSet* set = state.sets.find(request.set);
  if (set != nullptr && set->here.has(state.own())) {
    return ask_of_set(*set, std::move(request), now_ns);
  }
  Response response;  // removed since the call was checked
  response.kind = request.kind;
  response.set = request.set;
  response.status = removed_set(request.set);
  response.names = {std::move(request.name)};
  state.agenda.push_back(std::move(response));
}

void Controller::Impl::ask_of_set(const ProcessSet& set, Request request, std::int64_t now_ns) {
  Entry& entry = state.table.at(set, request.name);
  const Request* known =
      state.cache && entry.slot >= 0 ? request_of(entry.known, state.own()) : nullptr;
  if (known != nullptr && same(*known, request)) {
    state.table.ask_known(entry, state.own(), now_ns);
  } else {
    state.table.ask(entry, state.own(), std::move(request), now_ns);
  }
  if (note_ready) ready.push_back({0, entry.kind, *entry.name, now_ns});
  asked(entry, now_ns);
}

void Controller::Impl::asked(Entry& entry, std::int64_t now_ns) {
  coordinator ? coordinator->asked(entry, now_ns) : tree_node->asked(entry, now_ns);
}

void Controller::Impl::leave(int rank) {
  coordinator ? coordinator->leave(rank) : tree_node->leave({rank});
}

void Controller::Impl::park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) {
  if (tree_node) return tree_node->pass_on(std::move(request), ranks);
  for (const int rank : ranks) coordinator->park(rank, request.sizes.front() != 0, now_ns);
}

Status Controller::Impl::blocked(Request request, const std::vector<int>& ranks,
                                 std::int64_t now_ns) {
  if (tree_node) {
    tree_node->send_all();
    tree_node->pass_on(std::move(request), ranks);
    return Status::ok();
  }
  Result<Blocked> said = blocked_of(request);
  if (!said) return said.status();
  for (const int rank : ranks) coordinator->blocked(rank, said.value(), now_ns);
  return Status::ok();
}

void Controller::Impl::gone(int peer) {
  if (peer == state.tree.parent()) return state.end(peer);
  const int place = state.tree.place_of(peer);
  if (place < 0 || place >= state.tree.children()) return;
  if (std::exchange(children[static_cast<std::size_t>(place)].closed, true)) return;
  leave(peer);
}

Status Controller::Impl::hear_requests(int place, const std::string& bytes, std::int64_t now_ns) {
  Result<RequestList> requests = decode_requests(bytes);
  if (!requests) return requests.status();
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

void Controller::Impl::hear_slot(int place, int slot, std::uint64_t assignments,
                                 std::int64_t now_ns) {
  Entry* entry = state.table.at_slot(slot);
  const RankSet& below = state.tree.below(place);
  if (entry == nullptr || entry->version > assignments || !entry->set->here.meets(below)) {
    Outbox& outbox = children[static_cast<std::size_t>(place)];
    append_again(outbox.items, slot, assignments);
    ++outbox.count;
    return;
  }
  if (state.tree.is_leaf(place)) {
    state.table.ask_known(*entry, below.first(), now_ns);
  } else {
    state.table.ask_known(*entry, both(entry->set->here, below), now_ns);
  }
  if (note_ready) note(below, *entry, now_ns);
  asked(*entry, now_ns);
}

Status Controller::Impl::hear_request(int place, RequestMessage& ask, std::uint64_t changes,
                                      std::int64_t now_ns) {
  const RankSet& below = state.tree.below(place);
  RankSet who;
  for (const int rank : ask.ranks) {
    const int number = state.tree.number_of(rank);
    if (number < 0 || !below.has(number)) {
      return Status::make(
          Code::kInternal,
          "a request of rank " + std::to_string(rank) + " came from a rank outside its subtree",
          "engine/controller");
    }
    who.add(number);
  }
  const Kind kind = ask.request.kind;
  if (kind == Kind::kLeave || kind == Kind::kJoin) {
    if (kind == Kind::kJoin && tree_node) {
      tree_node->join(ask.request, ask.ranks, now_ns);
      return Status::ok();
    }
    for (const int rank : ask.ranks)
      kind == Kind::kJoin ? coordinator->join(rank, now_ns) : leave(rank);
    return Status::ok();
  }
  if (kind == Kind::kPark) {
    park(std::move(ask.request), ask.ranks, now_ns);
    return Status::ok();
  }
  if (kind == Kind::kBlocked) return blocked(std::move(ask.request), ask.ranks, now_ns);
  // Of a set that has been removed: its sender learns of that.
  const ProcessSet* set = state.sets.find(ask.request.set);
  if (set == nullptr || changes < set->born) return Status::ok();
  // No rank asks for that: its own engine would have refused it. Somebody lies.
  const auto members = static_cast<std::size_t>(set->size);
  if (Status status = sensible(ask.request, members, state.tree.size()); !status) {
    return Status::make(Code::kInternal, "an invalid request: " + status.message,
                        "engine/controller");
  }
  if (ask.ranks.empty()) who = below;
  who.keep(set->here);
  if (who.empty()) return Status::ok();
  Entry& entry = state.table.at(*set, ask.request.name);
  state.table.ask(entry, who, std::move(ask.request), now_ns);
  if (note_ready) note(who, entry, now_ns);
  asked(entry, now_ns);
  return Status::ok();
}

void Controller::Impl::note(const RankSet& who, const Entry& entry, std::int64_t now_ns) {
  for (const int rank : both(who, entry.set->here).numbers()) {
    ready.push_back({rank, entry.kind, *entry.name, now_ns});
  }
}

Status Controller::Impl::hear_responses(const std::string& bytes, std::int64_t now_ns) {
  hand_up();  // what its slots mean may change now
  Result<std::vector<Item>> items = decode_responses(bytes);
  if (!items) return items.status();
  for (const Item& item : items.value()) {
    if (Status status = hear_item(item, bytes, now_ns); !status) return status;
  }
  return Status::ok();
}

Status Controller::Impl::hear_item(const Item& item, const std::string& bytes,
                                   std::int64_t now_ns) {
  if (item.sort == Item::Sort::kAgain) {
    tree_node->again(item.slot, item.version);
    return Status::ok();
  }
  const bool cached = item.sort == Item::Sort::kCached;
  const Entry* entry = cached ? state.table.at_slot(item.slots.front()) : nullptr;
  for (int place = 0; place < state.tree.children(); ++place) {
    if (cached ? concerns(place, entry != nullptr ? entry->set : nullptr)
               : concerns(place, item.message)) {
      post(place, bytes.substr(item.begin, item.end - item.begin));
    }
  }
  Status status = cached ? state.learn(item.slots) : state.learn(item.message);
  if (status && !cached) after(item.message, now_ns);
  return status;
}

void Controller::Impl::after(const ResponseMessage& message, std::int64_t now_ns) {
  const Response& response = message.response;
  if (response.kind == Kind::kLeave) {
    const int place = state.tree.place_of(response.rank);
    if (place >= 0 && place < state.tree.children()) {
      children[static_cast<std::size_t>(place)].closed = true;
    }
    if (tree_node) tree_node->keep_nothing();
  }
  if (!tree_node || response.status.code != Code::kStalled) return;
  for (const std::string& name : response.names) {
    Entry* entry = state.table.find(response.set, name);
    if (entry != nullptr && !entry->asked.empty()) tree_node->asked(*entry, now_ns);
  }
}

void Controller::Impl::release_held(std::int64_t now_ns) {
  if (held.empty() || !state.join_name.empty()) return;
  for (Request& request : std::exchange(held, {})) ask(std::move(request), now_ns);
}

void Controller::Impl::issue(const ResponseMessage& message) {
  std::string item;
  append_response(item, message);
  for (int place = 0; place < state.tree.children(); ++place) {
    if (concerns(place, message)) post(place, item);
  }
  obey(state.learn(message));
  after(message, 0);
}

void Controller::Impl::issue(const std::vector<int>& slots) {
  std::string item;
  append_cached(item, slots);
  const Entry* entry = state.table.at_slot(slots.front());
  for (int place = 0; place < state.tree.children(); ++place) {
    if (concerns(place, entry->set)) post(place, item);
  }
  obey(state.learn(slots));
}

bool Controller::Impl::concerns(int place, const ResponseMessage& message) const {
  // Those who are late for something will be told, and the ranks between are to know.
  if (message.only.empty() || message.response.status.code == Code::kStalled) {
    return concerns(place, state.sets.find(message.response.set));
  }
  return std::any_of(message.only.begin(), message.only.end(), [&](int rank) {
    const int number = state.tree.number_of(rank);
    return number >= 0 && state.tree.below(place).has(number);
  });
}

bool Controller::Impl::concerns(int place, const ProcessSet* set) const {
  return set != nullptr && (set->id == 0 || set->here.meets(state.tree.below(place)));
}

void Controller::Impl::post(int place, const std::string& item) {
  Outbox& outbox = children[static_cast<std::size_t>(place)];
  if (outbox.closed) return;
  outbox.items += item;
  ++outbox.count;
}

// Rank 0 has contradicted itself: our own bug, which ends this engine.
void Controller::Impl::obey(const Status& status) {
  if (status) return;
  Response response;
  response.kind = Kind::kLeave;
  response.rank = 0;
  response.status = status;
  state.agenda.push_back(std::move(response));
}

void Controller::Impl::hand_up() {
  std::string bytes = tree_node ? tree_node->take() : std::string();
  if (!bytes.empty()) outgoing.push_back({state.tree.parent(), std::move(bytes)});
}

News Controller::Impl::take(std::int64_t now_ns) {
  release_held(now_ns);
  News news;
  if (coordinator) {
    coordinator->work(now_ns);
    news.warnings = coordinator->take_warnings();
  } else {
    tree_node->check(now_ns);
    hand_up();
  }
  news.outgoing = std::exchange(outgoing, {});
  for (std::size_t i = 0; i < children.size(); ++i) {
    Outbox& outbox = children[i];
    if (outbox.count == 0) continue;
    news.outgoing.push_back(
        {state.tree.child(static_cast<int>(i)), response_list_of(outbox.items, outbox.count)});
    outbox.items.clear();
    outbox.count = 0;
  }
  news.agenda = std::exchange(state.agenda, {});
  news.cached = std::exchange(state.cached, 0);
  news.ready = std::exchange(ready, {});
  return news;
}

bool Controller::Impl::has_news() const {
  return !outgoing.empty() || !state.agenda.empty() || !ready.empty() ||
         (!held.empty() && state.join_name.empty()) || (tree_node && tree_node->has_requests()) ||
         std::any_of(children.begin(), children.end(),
                     [](const Outbox& outbox) { return outbox.count > 0; });
}

Controller::Controller(int rank, int size, const ControllerOptions& options)
    : impl_(std::make_unique<Impl>(rank, size, options)) {}
Controller::~Controller() = default;

void Controller::ask(Request request, std::int64_t now_ns) {
  impl_->ask(std::move(request), now_ns);
}

Status Controller::hear(int from, const std::string& bytes, std::int64_t now_ns) {
  const Subtree& tree = impl_->state.tree;
  const int place = tree.place_of(from);
  Status status;
  if (place >= 0 && place < tree.children()) {
    status = impl_->hear_requests(place, bytes, now_ns);
  } else if (from >= 0 && from == tree.parent()) {
    status = impl_->hear_responses(bytes, now_ns);
  } else {
    status = Status::make(
        Code::kInternal,
        "a control message came from a rank that is neither parent nor child in the tree",
        "engine/controller");
  }
  if (!status) {
    status.message += " (message of rank " + std::to_string(from) + ")";
    status.rank = from;
  }
  return status;
}

void Controller::gone(int peer, std::int64_t /*now_ns*/) { impl_->gone(peer); }

void Controller::carried_out(std::int64_t bytes, std::int64_t /*now_ns*/) {
  if (impl_->coordinator) impl_->coordinator->carried_out(bytes);
}

News Controller::take(std::int64_t now_ns) { return impl_->take(now_ns); }

std::int64_t Controller::due_in(std::int64_t now_ns) const {
  if (impl_->has_news()) return 0;
  return impl_->coordinator ? impl_->coordinator->due_in(now_ns) : impl_->tree_node->due_in(now_ns);
}

bool Controller::idle() const {
  const RankState& state = impl_->state;
  return state.table.count_waiting() == 0 && state.joined.empty() && impl_->held.empty() &&
         (!impl_->coordinator || impl_->coordinator->idle());
}

std::vector<Waiting> Controller::waiting() const {
  const RankState& state = impl_->state;
  std::vector<Waiting> all;
  for (const Entry* entry : state.table.waiting()) {
    Waiting waiting = state.waiting(*entry);
    if (!entry->decided && !waiting.missing.empty()) all.push_back(std::move(waiting));
  }
  return all;
}

std::vector<int> Controller::ranks_of(int set) const {
  std::vector<int> ranks;
  const ProcessSet* found = impl_->state.sets.find(set);
  for (int place = 0; found != nullptr && place < found->size; ++place) {
    ranks.push_back(found->rank_at(place));
  }
  return ranks;
}

}  // namespace hvd
