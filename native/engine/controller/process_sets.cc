#include "engine/controller/process_sets.h"

#include <algorithm>
#include <utility>

namespace hvd {

ProcessSets::ProcessSets(const Subtree& tree) : tree_(tree) {
  auto all = std::make_unique<ProcessSet>();
  all->size = tree.size();
  all->count_here = tree.count();
  for (int number = 0; number < all->count_here; ++number) all->here.add(number);
  sets_.push_back(std::move(all));
}

bool ProcessSets::valid(const std::vector<std::int64_t>& ranks) const {
  std::int64_t last = -1;
  for (const std::int64_t rank : ranks) {
    if (rank <= last || rank >= tree_.size()) return false;
    last = rank;
  }
  return !ranks.empty();
}

int ProcessSets::same_as(const std::vector<std::int64_t>& ranks) const {
  if (ranks.size() == static_cast<std::size_t>(tree_.size())) return 0;
  for (const auto& set : sets_) {
    if (set && set->ranks.size() == ranks.size() &&
        std::equal(ranks.begin(), ranks.end(), set->ranks.begin())) {
      return set->id;
    }
  }
  return -1;
}

int ProcessSets::next_id() const {
  return free_.empty() ? static_cast<int>(sets_.size()) : free_.front();
}

const ProcessSet* ProcessSets::find_pair(int id) const {
  const auto known = pairs_.find(id);
  if (known != pairs_.end()) return known->second.get();
  const std::optional<Pair> pair = pair_of(id, tree_.size());
  if (!pair) return nullptr;
  return pairs_.emplace(id, make(id, {pair->low, pair->high})).first->second.get();
}

std::unique_ptr<ProcessSet> ProcessSets::make(int id,
                                              const std::vector<std::int64_t>& ranks) const {
  auto set = std::make_unique<ProcessSet>();
  set->id = id;
  set->size = static_cast<int>(ranks.size());
  for (const std::int64_t value : ranks) {
    const int rank = static_cast<int>(value);
    set->ranks.push_back(rank);
    const int number = tree_.number_of(rank);
    if (number >= 0) set->here.add(number);
  }
  set->count_here = set->here.count();
  return set;
}

void ProcessSets::add(int id, const std::vector<std::int64_t>& ranks) {
  auto set = make(id, ranks);
  set->born = ++changes_;
  if (!free_.empty() && free_.front() == id) free_.pop_front();
  const auto at = static_cast<std::size_t>(id);
  if (at >= sets_.size()) sets_.resize(at + 1);
  sets_[at] = std::move(set);
}

void ProcessSets::remove(int id) {
  ++changes_;
  sets_[static_cast<std::size_t>(id)].reset();
  free_.push_back(id);
}

}  // namespace hvd
