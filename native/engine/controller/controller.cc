#include "engine/controller/controller.h"

#include <algorithm>
#include <utility>

#include "engine/controller/coordinator.h"
#include "engine/controller/node.h"
#include "engine/controller/response_cache.h"
#include "engine/controller/tree_node.h"
#include "engine/message/validate.h"
#include "engine/message/wire.h"

namespace hvd {

struct Conductor::State : Post {
  // What goes to one child with the next letter.
  struct Outbox {
    std::string items;
    std::size_t count = 0;
    bool closed = false;
  };

  State(int rank, int size, const ConductorOptions& options);

  void ask(Request request, std::int64_t now_ns);
  void ask_of_set(const ProcessSet& set, Request request, std::int64_t now_ns);
  void asked(Entry& entry, std::int64_t now_ns);
  void leave(int rank);
  void park(Request request, const std::vector<int>& ranks, std::int64_t now_ns);
  void gone(int peer);

  Status hear_asks(int place, const std::string& bytes, std::int64_t now_ns);
  void hear_slot(int place, int slot, std::uint64_t assignments, std::int64_t now_ns);
  Status hear_ask(int place, Ask& ask, std::uint64_t changes, std::int64_t now_ns);
  Status hear_tidings(const std::string& bytes, std::int64_t now_ns);
  Status hear_item(const Item& item, const std::string& bytes, std::int64_t now_ns);
  void after(const Verdict& verdict, std::int64_t now_ns);
  void release_held(std::int64_t now_ns);

  void issue(const Verdict& verdict) override;
  void issue(const std::vector<int>& slots) override;
  bool concerns(int place, const Verdict& verdict) const;
  bool concerns(int place, const ProcessSet* set) const;
  void post(int place, const std::string& item);
  void obey(const Status& status);

  void hand_up();
  News take(std::int64_t now_ns);
  bool has_news() const;
  void note(const RankSet& who, const Entry& entry, std::int64_t now_ns);

  Node node;
  std::unique_ptr<Leader> leader;  // rank 0
  std::unique_ptr<Relay> relay;    // the others
  std::vector<Outbox> children;
  std::vector<Letter> letters;
  std::vector<Request> held;  // what a rank that has joined asks for waits until all have
  bool note_ready;
  std::vector<Ready> ready;
};

Conductor::State::State(int rank, int size, const ConductorOptions& options)
    : node(rank, size, std::max(1, options.fanout)),
      children(static_cast<std::size_t>(node.tree.children())),
      note_ready(options.note_ready && rank == 0) {
  if (rank == 0) {
    leader = std::make_unique<Leader>(node, options, *this);
  } else {
    const std::int64_t warning = options.stall_warning_ns;
    relay = std::make_unique<Relay>(node, warning > 0 ? warning / 2 : -1);
  }
}

void Conductor::State::ask(Request request, std::int64_t now_ns) {
  const int rank = node.tree.rank();
  if (request.kind == Kind::kLeave) return leave(rank);
  if (request.kind == Kind::kPark) return park(std::move(request), {rank}, now_ns);
  if (!node.join_name.empty() && request.set == 0) {
    held.push_back(std::move(request));
    return;
  }
  if (request.kind == Kind::kJoin) {
    node.join_name = std::exchange(request.name, kJoinName);
    return leader ? leader->join(rank, now_ns) : relay->join(request, {rank}, now_ns);
  }
  if (request.kind == Kind::kAddSet) std::sort(request.sizes.begin(), request.sizes.end());
  const ProcessSet* set = node.sets.find(request.set);
  if (set != nullptr && set->here.has(node.own())) {
    return ask_of_set(*set, std::move(request), now_ns);
  }
  Response response;  // removed since the call was checked
  response.kind = request.kind;
  response.set = request.set;
  response.status = removed_set(request.set);
  response.names = {std::move(request.name)};
  node.agenda.push_back(std::move(response));
}

void Conductor::State::ask_of_set(const ProcessSet& set, Request request, std::int64_t now_ns) {
  Entry& entry = node.table.at(set, request.name);
  const Request* known =
      node.cache && entry.slot >= 0 ? request_of(entry.known, node.own()) : nullptr;
  if (known != nullptr && same(*known, request)) {
    node.table.ask_known(entry, node.own(), now_ns);
  } else {
    node.table.ask(entry, node.own(), std::move(request), now_ns);
  }
  if (note_ready) ready.push_back({0, entry.kind, *entry.name, now_ns});
  asked(entry, now_ns);
}

void Conductor::State::asked(Entry& entry, std::int64_t now_ns) {
  leader ? leader->asked(entry, now_ns) : relay->asked(entry, now_ns);
}

void Conductor::State::leave(int rank) { leader ? leader->leave(rank) : relay->leave({rank}); }

void Conductor::State::park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) {
  if (relay) return relay->pass_on(std::move(request), ranks);
  for (const int rank : ranks) leader->park(rank, request.sizes.front() != 0, now_ns);
}

void Conductor::State::gone(int peer) {
  if (peer == node.tree.parent()) return node.end(peer);
  const int place = node.tree.place_of(peer);
  if (place < 0 || place >= node.tree.children()) return;
  if (std::exchange(children[static_cast<std::size_t>(place)].closed, true)) return;
  leave(peer);
}

Status Conductor::State::hear_asks(int place, const std::string& bytes, std::int64_t now_ns) {
  Result<Asks> asks = decode_asks(bytes);
  if (!asks) return asks.status();
  const std::vector<std::uint64_t>& words = asks.value().slots;
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
      const int slot = static_cast<int>(i * 64) + __builtin_ctzll(rest);
      hear_slot(place, slot, asks.value().assignments, now_ns);
    }
  }
  for (Ask& ask : asks.value().full) {
    if (Status status = hear_ask(place, ask, asks.value().changes, now_ns); !status) return status;
  }
  return Status::ok();
}

void Conductor::State::hear_slot(int place, int slot, std::uint64_t assignments,
                                 std::int64_t now_ns) {
  Entry* entry = node.table.at_slot(slot);
  const RankSet& below = node.tree.below(place);
  if (entry == nullptr || entry->version > assignments || !entry->set->here.meets(below)) {
    Outbox& outbox = children[static_cast<std::size_t>(place)];
    append_again(outbox.items, slot, assignments);
    ++outbox.count;
    return;
  }
  if (node.tree.is_leaf(place)) {
    node.table.ask_known(*entry, below.first(), now_ns);
  } else {
    node.table.ask_known(*entry, both(entry->set->here, below), now_ns);
  }
  if (note_ready) note(below, *entry, now_ns);
  asked(*entry, now_ns);
}

Status Conductor::State::hear_ask(int place, Ask& ask, std::uint64_t changes, std::int64_t now_ns) {
  const RankSet& below = node.tree.below(place);
  RankSet who;
  for (const int rank : ask.ranks) {
    const int number = node.tree.number_of(rank);
    if (number < 0 || !below.has(number)) {
      return Status::make(
          Code::kInternal,
          "a request of rank " + std::to_string(rank) + " came from where it cannot come from",
          "engine/conductor");
    }
    who.add(number);
  }
  const Kind kind = ask.request.kind;
  if (kind == Kind::kLeave || kind == Kind::kJoin) {
    if (kind == Kind::kJoin && relay) {
      relay->join(ask.request, ask.ranks, now_ns);
      return Status::ok();
    }
    for (const int rank : ask.ranks) kind == Kind::kJoin ? leader->join(rank, now_ns) : leave(rank);
    return Status::ok();
  }
  if (kind == Kind::kPark) {
    park(std::move(ask.request), ask.ranks, now_ns);
    return Status::ok();
  }
  // Of a set that has been removed: its sender learns of that.
  const ProcessSet* set = node.sets.find(ask.request.set);
  if (set == nullptr || changes < set->born) return Status::ok();
  // No rank asks for that: its own engine would have refused it. Somebody lies.
  const auto members = static_cast<std::size_t>(set->size);
  if (Status status = sensible(ask.request, members, node.tree.size()); !status) {
    return Status::make(Code::kInternal, "no rank can ask for this: " + status.message,
                        "engine/conductor");
  }
  if (ask.ranks.empty()) who = below;
  who.keep(set->here);
  if (who.empty()) return Status::ok();
  Entry& entry = node.table.at(*set, ask.request.name);
  node.table.ask(entry, who, std::move(ask.request), now_ns);
  if (note_ready) note(who, entry, now_ns);
  asked(entry, now_ns);
  return Status::ok();
}

void Conductor::State::note(const RankSet& who, const Entry& entry, std::int64_t now_ns) {
  for (const int rank : both(who, entry.set->here).numbers()) {
    ready.push_back({rank, entry.kind, *entry.name, now_ns});
  }
}

Status Conductor::State::hear_tidings(const std::string& bytes, std::int64_t now_ns) {
  hand_up();  // what its slots mean may change now
  Result<std::vector<Item>> items = decode_tidings(bytes);
  if (!items) return items.status();
  for (const Item& item : items.value()) {
    if (Status status = hear_item(item, bytes, now_ns); !status) return status;
  }
  return Status::ok();
}

Status Conductor::State::hear_item(const Item& item, const std::string& bytes,
                                   std::int64_t now_ns) {
  if (item.sort == Item::Sort::kAgain) {
    relay->again(item.slot, item.version);
    return Status::ok();
  }
  const bool cached = item.sort == Item::Sort::kCached;
  const Entry* entry = cached ? node.table.at_slot(item.slots.front()) : nullptr;
  for (int place = 0; place < node.tree.children(); ++place) {
    if (cached ? concerns(place, entry != nullptr ? entry->set : nullptr)
               : concerns(place, item.verdict)) {
      post(place, bytes.substr(item.begin, item.end - item.begin));
    }
  }
  Status status = cached ? node.learn(item.slots) : node.learn(item.verdict);
  if (status && !cached) after(item.verdict, now_ns);
  return status;
}

void Conductor::State::after(const Verdict& verdict, std::int64_t now_ns) {
  const Response& response = verdict.response;
  if (response.kind == Kind::kLeave) {
    const int place = node.tree.place_of(response.rank);
    if (place >= 0 && place < node.tree.children()) {
      children[static_cast<std::size_t>(place)].closed = true;
    }
    if (relay) relay->keep_nothing();
  }
  if (!relay || response.status.code != Code::kStalled) return;
  for (const std::string& name : response.names) {
    Entry* entry = node.table.find(response.set, name);
    if (entry != nullptr && !entry->asked.empty()) relay->asked(*entry, now_ns);
  }
}

void Conductor::State::release_held(std::int64_t now_ns) {
  if (held.empty() || !node.join_name.empty()) return;
  for (Request& request : std::exchange(held, {})) ask(std::move(request), now_ns);
}

void Conductor::State::issue(const Verdict& verdict) {
  std::string item;
  append_verdict(item, verdict);
  for (int place = 0; place < node.tree.children(); ++place) {
    if (concerns(place, verdict)) post(place, item);
  }
  obey(node.learn(verdict));
  after(verdict, 0);
}

void Conductor::State::issue(const std::vector<int>& slots) {
  std::string item;
  append_cached(item, slots);
  const Entry* entry = node.table.at_slot(slots.front());
  for (int place = 0; place < node.tree.children(); ++place) {
    if (concerns(place, entry->set)) post(place, item);
  }
  obey(node.learn(slots));
}

bool Conductor::State::concerns(int place, const Verdict& verdict) const {
  // Those who are late for something will be told, and the ranks between are to know.
  if (verdict.only.empty() || verdict.response.status.code == Code::kStalled) {
    return concerns(place, node.sets.find(verdict.response.set));
  }
  return std::any_of(verdict.only.begin(), verdict.only.end(), [&](int rank) {
    const int number = node.tree.number_of(rank);
    return number >= 0 && node.tree.below(place).has(number);
  });
}

bool Conductor::State::concerns(int place, const ProcessSet* set) const {
  return set != nullptr && (set->id == 0 || set->here.meets(node.tree.below(place)));
}

void Conductor::State::post(int place, const std::string& item) {
  Outbox& outbox = children[static_cast<std::size_t>(place)];
  if (outbox.closed) return;
  outbox.items += item;
  ++outbox.count;
}

// Rank 0 has contradicted itself: our own bug, which ends this engine.
void Conductor::State::obey(const Status& status) {
  if (status) return;
  Response response;
  response.kind = Kind::kLeave;
  response.rank = 0;
  response.status = status;
  node.agenda.push_back(std::move(response));
}

void Conductor::State::hand_up() {
  std::string bytes = relay ? relay->take() : std::string();
  if (!bytes.empty()) letters.push_back({node.tree.parent(), std::move(bytes)});
}

News Conductor::State::take(std::int64_t now_ns) {
  release_held(now_ns);
  News news;
  if (leader) {
    leader->work(now_ns);
    news.warnings = leader->take_warnings();
  } else {
    relay->check(now_ns);
    hand_up();
  }
  news.letters = std::exchange(letters, {});
  for (std::size_t i = 0; i < children.size(); ++i) {
    Outbox& outbox = children[i];
    if (outbox.count == 0) continue;
    news.letters.push_back(
        {node.tree.child(static_cast<int>(i)), tidings_of(outbox.items, outbox.count)});
    outbox.items.clear();
    outbox.count = 0;
  }
  news.agenda = std::exchange(node.agenda, {});
  news.cached = std::exchange(node.cached, 0);
  news.ready = std::exchange(ready, {});
  return news;
}

bool Conductor::State::has_news() const {
  return !letters.empty() || !node.agenda.empty() || !ready.empty() ||
         (!held.empty() && node.join_name.empty()) || (relay && relay->has_asks()) ||
         std::any_of(children.begin(), children.end(),
                     [](const Outbox& outbox) { return outbox.count > 0; });
}

Conductor::Conductor(int rank, int size, const ConductorOptions& options)
    : state_(std::make_unique<State>(rank, size, options)) {}
Conductor::~Conductor() = default;

void Conductor::ask(Request request, std::int64_t now_ns) {
  state_->ask(std::move(request), now_ns);
}

Status Conductor::hear(int from, const std::string& bytes, std::int64_t now_ns) {
  const Subtree& tree = state_->node.tree;
  const int place = tree.place_of(from);
  Status status;
  if (place >= 0 && place < tree.children()) {
    status = state_->hear_asks(place, bytes, now_ns);
  } else if (from >= 0 && from == tree.parent()) {
    status = state_->hear_tidings(bytes, now_ns);
  } else {
    status = Status::make(Code::kInternal, "this rank hears only from its parent and its children",
                          "engine/conductor");
  }
  if (!status) {
    status.message += " (message of rank " + std::to_string(from) + ")";
    status.rank = from;
  }
  return status;
}

void Conductor::gone(int peer, std::int64_t /*now_ns*/) { state_->gone(peer); }

void Conductor::carried_out(std::int64_t bytes, std::int64_t /*now_ns*/) {
  if (state_->leader) state_->leader->carried_out(bytes);
}

News Conductor::take(std::int64_t now_ns) { return state_->take(now_ns); }

std::int64_t Conductor::due_in(std::int64_t now_ns) const {
  if (state_->has_news()) return 0;
  return state_->leader ? state_->leader->due_in(now_ns) : state_->relay->due_in(now_ns);
}

bool Conductor::idle() const {
  const Node& node = state_->node;
  return node.table.count_waiting() == 0 && node.joined.empty() && state_->held.empty() &&
         (!state_->leader || state_->leader->idle());
}

std::vector<Waiting> Conductor::waiting() const {
  const Node& node = state_->node;
  std::vector<Waiting> all;
  for (const Entry* entry : node.table.waiting()) {
    Waiting waiting = node.waiting(*entry);
    if (!entry->decided && !waiting.missing.empty()) all.push_back(std::move(waiting));
  }
  return all;
}

std::vector<int> Conductor::ranks_of(int set) const {
  std::vector<int> ranks;
  const ProcessSet* found = state_->node.sets.find(set);
  for (int place = 0; found != nullptr && place < found->size; ++place) {
    ranks.push_back(found->rank_at(place));
  }
  return ranks;
}

}  // namespace hvd
