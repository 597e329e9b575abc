#include "engine/controller/children.h"

#include <algorithm>
#include <utility>

namespace hvd {

Children::Children(const RankState& state)
    : state_(state), outboxes_(static_cast<std::size_t>(state.tree().children())) {}

template <typename Decision>
void Children::post_to_all(const Decision& decision, std::string_view item) {
  for (std::size_t place = 0; place < outboxes_.size(); ++place) {
    Outbox& outbox = outboxes_[place];
    if (outbox.closed || !concerns(static_cast<int>(place), decision)) continue;
    outbox.items += item;
    ++outbox.count;
  }
}

void Children::post(const ResponseMessage& message, std::string_view item) {
  post_to_all(message, item);
  if (message.response.kind != Kind::kLeave) return;
  const int place = state_.tree().place_of(message.response.rank);
  if (place >= 0 && place < state_.tree().children()) close(place);
}

void Children::post(const std::vector<int>& slots, std::string_view item) {
  const Entry* const entry = state_.table().at_slot(slots.front());
  post_to_all(entry != nullptr ? entry->set : nullptr, item);
}

void Children::again(int place, int slot, std::uint64_t version) {
  Outbox& outbox = outboxes_[static_cast<std::size_t>(place)];
  append_again(outbox.items, slot, version);
  ++outbox.count;
}

void Children::post_void(int place, std::uint64_t position) {
  Outbox& outbox = outboxes_[static_cast<std::size_t>(place)];
  if (outbox.closed) return;
  append_void(outbox.items, position);
  ++outbox.count;
}

bool Children::close(int place) {
  return !std::exchange(outboxes_[static_cast<std::size_t>(place)].closed, true);
}

bool Children::empty() const {
  return std::all_of(outboxes_.begin(), outboxes_.end(),
                     [](const Outbox& outbox) { return outbox.count == 0; });
}

void Children::take(std::vector<OutgoingMessage>& into) {
  for (std::size_t place = 0; place < outboxes_.size(); ++place) {
    Outbox& outbox = outboxes_[place];
    if (outbox.count == 0) continue;
    into.push_back({state_.tree().child(static_cast<int>(place)),
                    response_list_of(outbox.items, outbox.count, state_.eager().completed())});
    outbox.items.clear();
    outbox.count = 0;
  }
}

bool Children::concerns(int place, const ResponseMessage& message) const {
  // Late ranks will receive this error, so the ranks on the path to them need it, too.
  if (message.only.empty() || message.response.status.code == Code::kStalled) {
    return concerns(place, state_.sets().find(message.response.set));
  }
  const Subtree& tree = state_.tree();
  return std::any_of(message.only.begin(), message.only.end(), [&](int rank) {
    const int number = tree.number_of(rank);
    return number >= 0 && tree.below(place).has(number);
  });
}

bool Children::concerns(int place, const ProcessSet* set) const {
  return set != nullptr && (set->id == 0 || set->here.meets(state_.tree().below(place)));
}

}  // namespace hvd
