#include "engine/eager_exchange.h"

#include <string>

#include "engine/execution/eager.h"

namespace hvd {

bool EagerExchange::may_send(const Task& task) const {
  return links_ != nullptr && task.completion == nullptr && may_send_eagerly(parts_, task);
}

void EagerExchange::send(const Task& task, const EagerTag& tag) const {
  send_eagerly(parts_, task, tag);
}

Result<bool> EagerExchange::look(Controller& controller, std::int64_t now_ns) {
  awaited_.clear();
  bool any = false;
  const EagerRounds& rounds = controller.eager();
  if (links_ == nullptr) return any;
  const std::uint64_t position = rounds.position();
  for (int peer = 0; rounds.open() && peer < parts_.mesh.topology().size; ++peer) {
    if (peer == parts_.mesh.topology().rank || rounds.has_received(peer)) continue;
    const EagerFound found = links_->look(peer, position);
    if (found.what == EagerFound::What::kEager && found.tag.position == position) {
      const std::uint64_t completed = rounds.completed();
      if (Status status = controller.eager_received(peer, found.tag.slot, now_ns); !status)
        return status;
      any = any || rounds.has_received(peer) || rounds.completed() != completed;
    } else if (found.what == EagerFound::What::kNothing) {
      awaited_.push_back(peer);
    } else if (found.what == EagerFound::What::kGone && controller.must_arrive(peer)) {
      return Status::make(
          Code::kShutdown,
          "rank " + std::to_string(peer) + " has shut down while this rank still needs it",
          "engine/eager_exchange", peer);
    }
  }
  if (!rounds.open()) awaited_.clear();
  return any;
}

void EagerExchange::wait(std::uint32_t seen, std::chrono::nanoseconds longest) const {
  const auto rung = [&] { return parts_.mesh.doorbell().heard() != seen; };
  links_->wait(awaited_, rung, longest);
}

void EagerExchange::watch() const {
  if (waits()) links_->watch(awaited_);
}

void EagerExchange::stir() const {
  if (links_ != nullptr) links_->stir();
}

}  // namespace hvd
