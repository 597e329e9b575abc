#include "engine/controller/rank_state.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

Status senseless(const char* what) {
  return Status::make(Code::kInternal, std::string("rank 0 sent an inconsistent response: ") + what,
                      "engine/rank_state", 0);
}

RankSet numbers_of(const Subtree& tree, const std::vector<int>& ranks) {
  RankSet numbers;
  for (const int rank : ranks) {
    const int number = tree.number_of(rank);
    if (number >= 0) numbers.add(number);
  }
  return numbers;
}

std::size_t tensors_of(const Entry& entry) {
  const Variants& variants = entry.in_full.empty() ? entry.known : entry.in_full;
  return variants.empty() ? 0 : variants.front().request->tensors.size();
}

}  // namespace

Status removed_set(int id) {
  return Status::make(Code::kInvalidArgument,
                      "Process set provided does not exist, or has not been registered. (Process "
                      "set " +
                          std::to_string(id) + " has been removed.)",
                      "engine/rank_state");
}

Status RankState::learn(const ResponseMessage& message) {
  const Response& response = message.response;
  const ProcessSet* set = sets_.find(response.set);
  if (set == nullptr) return senseless("a process set that does not exist");
  if (response.kind == Kind::kPark || response.kind == Kind::kBlocked)
    return senseless("a kind of request that has no response");
  step(response.set == 0 && message.only.empty());
  if (Status status = learn_answers(message, *set); !status) return status;
  Status status = response.status ? learn_change(response) : Status::ok();
  if (status) put_on_agenda(message, *set);
  return status;
}

Status RankState::learn_answers(const ResponseMessage& message, const ProcessSet& set) {
  const Response& response = message.response;
  const RankSet numbers = message.only.empty() ? set.here : numbers_of(tree_, message.only);
  if (response.kind == Kind::kJoin) joined_.remove(numbers);
  std::size_t size_at = 0;
  std::uint64_t version = message.version;
  for (std::size_t i = 0; i < response.names.size(); ++i) {
    Entry& entry = table_.at(set, response.names[i]);
    if (!message.slots.empty()) {
      const std::size_t sizes = response.kind == Kind::kAlltoall
                                    ? response.sizes.size()
                                    : tensors_of(entry) * static_cast<std::size_t>(set.size);
      const bool sized = !response.sizes.empty();
      if (sized && size_at + sizes > response.sizes.size())
        return senseless("sizes for tensors that no rank requested");
      if (message.slots[i] >= 0) {
        table_.assign(entry, message.slots[i], version);
        assignments_ = std::max(assignments_, version++);
        entry.known_kind = response.kind;
        entry.shared = response.shared;
        const std::int64_t* first = response.sizes.data() + size_at;
        entry.sizes.assign(first, first + (sized ? sizes : 0));
      }
      size_at += sizes;
    }
    table_.answer(entry, numbers);
    remember_failure(entry, response.status, numbers);
    table_.drop_if_empty(entry);
  }
  return Status::ok();
}

// Ranks on the path forward the requests of late ranks at once: they will be failed, so collecting
// the rest of the subtree is useless.
void RankState::remember_failure(Entry& entry, const Status& status, const RankSet& numbers) const {
  if (is_root() || tree_.count() == 1) return;
  if (status) {
    entry.failure.reset();
  } else if (status.code == Code::kStalled) {
    entry.failure = std::make_unique<Failure>(Failure{status, without(entry.set->here, numbers)});
  }
}

void RankState::put_on_agenda(const ResponseMessage& message, const ProcessSet& set) {
  const bool concerned = message.only.empty() ? set.here.has(own())
                                              : std::find(message.only.begin(), message.only.end(),
                                                          tree_.rank()) != message.only.end();
  if (!concerned) return;
  Response& response = agenda_.emplace_back(message.response);
  if (response.kind == Kind::kJoin) response.names = {std::exchange(join_name_, {})};
  if (response.kind != Kind::kLeave) return;
  record_left(response.rank);
  if (response.rank == tree_.rank() || tree_.leads_through(tree_.rank(), response.rank)) {
    response.status = shut_down_by(first_left_);
  }
}

Waiting RankState::waiting(const Entry& entry) const {
  RankSet missing = without(entry.set->here, entry.requested);
  if (entry.set->id == 0) missing.remove(joined_);
  return {*entry.name,
          entry.kind,
          entry.set->id,
          entry.since_ns,
          tree_.ranks_of(missing),
          tree_.ranks_of(entry.requested)};
}

bool RankState::complete(const Entry& entry) const {
  const RankSet& members = entry.set->here;
  if (entry.requested.contains(members)) return true;
  if (entry.set->id != 0 || joined_.empty()) return false;
  RankSet all = entry.requested;
  all.add(joined_);
  return all.contains(members);
}

void RankState::take_agenda(News& news) {
  news.agenda = std::exchange(agenda_, {});
  news.cached = std::exchange(cached_, 0);
}

void RankState::record_left(int rank) {
  if (first_left_ < 0) first_left_ = rank;
}

void RankState::end(int rank) {
  Response response;
  response.kind = Kind::kLeave;
  response.rank = rank;
  record_left(rank);
  response.status = shut_down_by(first_left_);
  agenda_.push_back(std::move(response));
}

Status RankState::learn_change(const Response& response) {
  if (response.kind == Kind::kTune) {
    caches_ = response.tunables.cache;
  } else if (response.kind == Kind::kAddSet) {
    const std::vector<std::int64_t> ranks(response.sizes.begin() + (response.sizes.empty() ? 0 : 1),
                                          response.sizes.end());
    if (!sets_.valid(ranks) || response.sizes.front() != sets_.next_id()) {
      return senseless("an invalid process set");
    }
    sets_.add(sets_.next_id(), ranks);
  } else if (response.kind == Kind::kRemoveSet) {
    if (response.sizes.size() != 2)
      return senseless("the removal of a process set that does not exist");
    if (response.sizes[1] != 1) return Status::ok();
    const int id = static_cast<int>(response.sizes[0]);
    if (id <= 0 || sets_.find(id) == nullptr)
      return senseless("the removal of a process set that does not exist");
    remove_set(id);
  }
  return Status::ok();
}

// Fail this rank's requests in the set that reached rank 0 too late.
void RankState::remove_set(int id) {
  for (const Entry* entry : std::as_const(table_).waiting()) {
    if (entry->set->id != id || !entry->requested.has(own())) continue;
    Response response;
    response.kind = entry->kind;
    response.set = id;
    response.names = {*entry->name};
    response.status = removed_set(id);
    agenda_.push_back(std::move(response));
  }
  table_.forget_set(id);
  sets_.remove(id);
}

Status RankState::learn(const std::vector<int>& slots) {
  const Entry* const first = table_.at_slot(slots.front());
  step(first != nullptr && first->set->id == 0);
  return learn_slots(slots);
}

Status RankState::complete_round() {
  const int slot = eager_.slot();
  eager_.complete();
  Status status = learn_slots({slot});
  if (status) agenda_.back().eager = true;
  return status;
}

// A decision for all ranks advances the position of eager rounds.
void RankState::step(bool all_ranks) { all_ranks ? eager_.passed() : eager_.strayed(); }

Status RankState::learn_slots(const std::vector<int>& slots) {
  Response response;
  response.names.reserve(slots.size());
  const ProcessSet* set = nullptr;
  for (const int slot : slots) {
    Entry* entry = table_.at_slot(slot);
    if (entry == nullptr || (set != nullptr && entry->set != set)) {
      return senseless("a cache slot that is not in use");
    }
    set = entry->set;
    response.kind = entry->known_kind;
    response.shared = entry->shared;
    response.names.push_back(*entry->name);
    response.sizes.insert(response.sizes.end(), entry->sizes.begin(), entry->sizes.end());
    table_.answer(*entry);
    if (entry->failure && !is_root()) entry->failure.reset();
  }
  response.set = set->id;
  if (!set->here.has(own())) return Status::ok();
  agenda_.push_back(std::move(response));
  ++cached_;
  return Status::ok();
}

}  // namespace hvd
