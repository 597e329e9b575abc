#include "mxnet/order.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "mxnet/call.h"

namespace hvd::mxnet {
namespace {

// Never destroyed: the core's threads may end calls while the process exits.
struct Order {
  Mutex lock;
  // Of a set and a name.
  std::map<std::pair<std::int32_t, std::string>, std::deque<Call*>> queues GUARDED_BY(lock);
};
Order& order() {
  static auto* const all = new Order;  // NOLINT(cppcoreguidelines-owning-memory): for ever
  return *all;
}

// Takes the call out of its queue; the one whose turn has come by that and which is ready.
Call* leave(Call* call) {
  Order& all = order();
  const MutexLock locked(all.lock);
  if (!call->queued) return nullptr;
  call->queued = false;
  const auto entry = all.queues.find({call->set, call->name});
  std::deque<Call*>& queue = entry->second;
  const bool was_first = queue.front() == call;
  queue.erase(std::find(queue.begin(), queue.end(), call));
  if (!queue.empty()) return was_first && queue.front()->is_ready ? queue.front() : nullptr;
  all.queues.erase(entry);
  return nullptr;
}

}  // namespace

void take_turn(Call* call) {
  Order& all = order();
  const MutexLock locked(all.lock);
  all.queues[{call->set, call->name}].push_back(call);
  call->queued = true;
}

void hand_over_in_turn(Call* call) {
  Order& all = order();
  {
    const MutexLock locked(all.lock);
    call->is_ready = true;
    if (all.queues.at({call->set, call->name}).front() != call) return;
  }
  hand_over(call);
}

void hand_over_next(Call* call) {
  if (Call* const next = leave(call)) hand_over(next);
}

}  // namespace hvd::mxnet
