// Eager rounds of the controller (eager/eager_rounds.h).
#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/controller/controller.h"
#include "engine/controller/response_cache.h"

namespace hvd {
namespace {

// Time that rank 0 waits for the data of an eager round before it queries which ranks will send
// none.
constexpr std::int64_t kRoundPatienceNs = 100'000'000;

// The request will be answered.
bool is_answered(Kind kind) { return kind != Kind::kPark && kind != Kind::kBlocked; }

bool is_answered(const RequestList& list) {
  return !list.slots.empty() ||
         std::any_of(list.full.begin(), list.full.end(), [](const RequestMessage& message) {
           return is_answered(message.request.kind);
         });
}

// The slot of a notice; negative: the list is not a notice.
int slot_of(const RequestList& list) {
  const std::uint64_t last = list.slots.empty() ? 0 : list.slots.back();
  const bool single = last != 0 && (last & (last - 1)) == 0 && list.full.empty() &&
                      std::count(list.slots.begin(), list.slots.end(), 0) + 1 ==
                          static_cast<std::ptrdiff_t>(list.slots.size());
  return single ? static_cast<int>((list.slots.size() - 1) * 64) + __builtin_ctzll(last) : -1;
}

}  // namespace

std::optional<EagerTag> Controller::submit_eagerly(const Request& request, std::int64_t now_ns) {
  EagerRounds& eager = state_.eager();
  const bool sums = request.kind == Kind::kAllreduce && request.set == 0;
  if (!sums || !eager.may_begin()) return std::nullopt;
  Entry* const entry = state_.table().find(0, request.name);
  if (entry == nullptr || !may_begin_round(*entry)) return std::nullopt;
  const Request* const known = request_of(entry->known, state_.own());
  if (known == nullptr || !same(*known, request)) return std::nullopt;
  send_up();
  state_.table().record_by_slot(*entry, state_.own(), now_ns);
  eager.begin(entry->slot, now_ns);
  if (records_ready_) ready_.push_back({0, entry->kind, *entry->name, now_ns});
  if (!state_.is_root()) role_->send_notice(*entry, eager.position());
  send_up();
  return EagerTag{eager.position(), static_cast<std::uint32_t>(entry->slot)};
}

// True if no participating rank waits for anything else, as far as this rank knows.
bool Controller::may_begin_round(const Entry& entry) const {
  const Subtree& tree = state_.tree();
  const bool star = state_.is_root() ? tree.children() == tree.size() - 1 : tree.parent() == 0;
  const bool plain = state_.caches() && state_.sets().only_the_global() && state_.first_left() < 0;
  const bool quiet = eager_held_.empty() && held_.empty() && !state_.has_agenda() &&
                     !state_.has_joined() && state_.joined().empty() && role_->idle();
  const bool cached = entry.slot >= 0 && !entry.failure && !entry.decided && !entry.shared &&
                      entry.known_kind == Kind::kAllreduce;
  if (!star || tree.size() == 1 || !plain || !quiet || !cached) return false;
  if (state_.table().count_waiting() == 0) return true;
  return state_.is_root() && state_.table().count_waiting() == 1 && !entry.requested.empty() &&
         !entry.requested.has(state_.own()) && state_.eager().all_sent(entry.requested, entry.slot);
}

Status Controller::eager_received(int peer, std::uint32_t slot, std::int64_t now_ns) {
  EagerRounds& eager = state_.eager();
  const int open_slot = eager.slot();
  if (!eager.open() || static_cast<std::uint32_t>(open_slot) != slot) return Status::ok();
  if (!eager.receive_data(peer)) return Status::ok();
  if (Status status = state_.complete_round(); !status) return status;
  role_->used(open_slot);
  return release_all(now_ns);
}

bool Controller::must_arrive(int peer) const {
  const EagerRounds& eager = state_.eager();
  return eager.open() && (state_.is_root() ? eager.has_sent(peer) : !eager_held_.empty());
}

// Rank 0 sent this after rounds that this rank has not completed yet.
bool Controller::is_early(int from, const std::string& bytes) const {
  return from == state_.tree().parent() && rounds_before(bytes) > state_.eager().completed();
}

// On rank 0, which has sent its data: messages that may change what is decided next are held until
// the round is decided.
Status Controller::receive_while_bound(int from, const std::string& bytes, std::int64_t now_ns) {
  const int place = state_.tree().place_of(from);
  if (place < 0 || place >= state_.tree().children()) return receive_from(from, bytes, now_ns);
  const Result<RequestList> list = decode_requests(bytes);
  if (!list) return receive_from(from, bytes, now_ns);  // reports the sender
  EagerRounds& eager = state_.eager();
  bool dead = !eager.has_sent(from) && is_answered(list.value());
  if (const auto position = list.value().position; position) {
    if (list.value().slots.empty()) {
      if (*position == eager.position() && !eager.has_sent(from)) {
        end_round(now_ns);
        return release_all(now_ns);
      }
      return Status::ok();
    }
    const auto notice = eager.receive_notice(from, *position, slot_of(list.value()));
    if (notice == EagerRounds::Notice::kOver) return Status::ok();
    if (notice == EagerRounds::Notice::kOfRound) {
      Entry& entry = *state_.table().at_slot(eager.slot());
      state_.table().record_by_slot(entry, from, now_ns);
      record_ready(state_.tree().below(place), entry, now_ns);
      return Status::ok();
    }
    dead = notice == EagerRounds::Notice::kRequest;
    if (!dead) {
      eager_held_.push_back({from, bytes, std::nullopt, false});
      return Status::ok();
    }
  }
  eager_held_.push_back({from, bytes, std::nullopt, false});
  if (!dead) {
    void_round();
    return Status::ok();
  }
  end_round(now_ns);
  return release_all(now_ns);
}

// No rank can complete the round: its operation is requested like any other.
void Controller::end_round(std::int64_t now_ns) {
  Entry* const entry = state_.table().at_slot(state_.eager().slot());
  state_.eager().die();
  if (entry != nullptr) role_->on_request(*entry, now_ns);
}

void Controller::void_round() {
  EagerRounds& eager = state_.eager();
  if (eager.voided()) return;
  eager.mark_voided();
  for (const int peer : eager.silent()) {
    children_.post_void(state_.tree().place_of(peer), eager.position());
  }
}

Status Controller::release_all(std::int64_t now_ns) {
  while (!eager_held_.empty()) {
    if (is_early(eager_held_.front().from, eager_held_.front().bytes)) break;
    const Held next = std::move(eager_held_.front());
    eager_held_.pop_front();
    const auto rest = std::exchange(eager_held_, {});
    Status status;
    if (next.request) {
      submit(*next.request, now_ns);
    } else if (next.peer_left) {
      peer_left(next.from, now_ns);
    } else {
      status = receive_from(next.from, next.bytes, now_ns);
    }
    eager_held_.insert(eager_held_.end(), rest.begin(), rest.end());
    if (!status) return status;
  }
  return Status::ok();
}

Status Controller::handle_notice(int place, const RequestList& list, std::uint64_t position,
                                 std::int64_t now_ns) {
  if (list.slots.empty()) return Status::ok();  // an answer about a round that is over
  const int slot = slot_of(list);
  const bool star = state_.is_root() && state_.tree().is_leaf(place);
  const auto notice =
      star && slot >= 0 ? state_.eager().receive_notice(state_.tree().child(place), position, slot)
                        : EagerRounds::Notice::kAhead;
  if (notice == EagerRounds::Notice::kOver) return Status::ok();
  if (notice != EagerRounds::Notice::kRequest) {
    return Status::make(Code::kInternal, "a notice of an impossible round",
                        "engine/controller_eager");
  }
  handle_slot(place, slot, list.assignments, now_ns);
  return Status::ok();
}

// Announce to rank 0 that this rank will never send its data, unless its notice says that it has.
void Controller::handle_void(std::uint64_t position) {
  EagerRounds& eager = state_.eager();
  if (position < eager.position() || (eager.open() && position == eager.position())) return;
  eager.close(position);
  send_up();
  role_->send_closed(position);
  send_up();
}

void Controller::record_submission(Kind kind) {
  if (is_answered(kind)) state_.eager().close();
  if (kind == Kind::kLeave) state_.eager().forbid();
}

bool Controller::hold_peer_left(int peer, std::int64_t now_ns) {
  const bool bound = state_.eager().bound();
  if (!bound && eager_held_.empty()) return false;
  eager_held_.push_back({peer, {}, std::nullopt, true});
  if (bound && state_.eager().has_sent(peer)) {
    void_round();
  } else if (bound) {
    end_round(now_ns);
    std::ignore = release_all(now_ns);
  }
  return true;
}

void Controller::work_on_round(std::int64_t now_ns) {
  if (now_ns - state_.eager().since_ns() >= kRoundPatienceNs) void_round();
}

std::int64_t Controller::round_due_in(std::int64_t now_ns) const {
  const EagerRounds& eager = state_.eager();
  const std::int64_t due = eager.since_ns() + kRoundPatienceNs - now_ns;
  return eager.voided() ? -1 : std::max<std::int64_t>(0, due);
}

}  // namespace hvd
