// The agreement of all ranks on what to do next, as a pure state machine, one per rank: requests of
// this rank's user, messages of other ranks and the time go in; messages, and what this rank is to
// do next, come out. It knows no thread, no channel and no tensor, so the code that ships runs as
// it is in tests and in the simulator with thousands of ranks.
//
// Terms.
//   tree     rank 0 decides; other ranks hand what their subtree asks for up to their parent
//            (transport/mesh/tree.h), and what rank 0 decided down to their children
//   cache    what was agreed on before has a number; a rank that asks for it again sends one bit, a
//            response is a number (response_cache.h)
//   stall    a request that some ranks of its set have made and others have not, for too long
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/controller/children.h"
#include "engine/controller/news.h"
#include "engine/controller/rank_state.h"
#include "engine/controller/role.h"
#include "engine/eager/eager_rounds.h"
#include "engine/message/request.h"
#include "engine/message/wire.h"
#include "transport/link/eager_links.h"

namespace hvd {

class Controller {
 public:
  Controller(int rank, int size, const ControllerOptions& options);

  void ask(Request request, std::int64_t now_ns);
  // A message that is none is a Status that names the sender.
  Status hear(int from, const std::string& bytes, std::int64_t now_ns);
  // The peer said goodbye without asking to leave: it could not wait for its turn.
  void gone(int peer, std::int64_t now_ns);
  // Instead of ask(), for a sum whose data can be sent at once (eager/eager_rounds.h). Nothing:
  // ask. Else they are to be sent with this tag before anything else is.
  std::optional<EagerTag> ask_eagerly(const Request& request, std::int64_t now_ns);
  const EagerRounds& eager() const { return state_.eager(); }
  // The peer's data for the open round have come.
  Status eager_came(int peer, std::uint32_t slot, std::int64_t now_ns);
  // The others have completed the round, as far as this rank knows, or the peer has said that it
  // sent: its data must come.
  bool must_come(int peer) const;
  // An operation of so many bytes has been carried out (for autotune).
  void carried_out(std::int64_t bytes, std::int64_t now_ns);
  // So much is in flight on this rank's devices: to be said before take() while something is held
  // for that.
  void in_flight(const InFlight& in_flight) { role_->in_flight(in_flight); }
  bool holds_on_devices() const { return role_->holds_on_devices(); }

  News take(std::int64_t now_ns);
  // How long until take() must be called though nothing happens; negative: for ever.
  std::int64_t due_in(std::int64_t now_ns) const;
  // Nobody of this rank's subtree waits for anybody, as far as this rank knows.
  bool idle() const;
  // What this rank knows of missing ranks: rank 0 of all, others of their subtree.
  std::vector<Waiting> waiting() const;
  // The ranks of a set; empty: there is none of this id.
  std::vector<int> ranks_of(int set) const;

 private:
  void ask_blocked(Request request, std::int64_t now_ns);
  void ask_of_set(const ProcessSet& set, Request request, std::int64_t now_ns);
  void note_ready(const RankSet& who, const Entry& entry, std::int64_t now_ns);

  // What cannot be looked at before the open round is decided, or before this rank has completed
  // those that rank 0 had.
  struct Held {
    int from = -1;  // this rank
    std::string bytes;
    std::optional<Request> request;  // this rank's
    bool gone = false;
  };
  void note_ask(Kind kind);
  bool hold_gone(int peer, std::int64_t now_ns);
  void work_on_round(std::int64_t now_ns);
  std::int64_t round_due_in(std::int64_t now_ns) const;
  bool comes_later(int from, const std::string& bytes) const;
  Status hear_while_bound(int from, const std::string& bytes, std::int64_t now_ns);
  Status release_all(std::int64_t now_ns);
  bool may_begin_round(const Entry& entry) const;
  void end_round(std::int64_t now_ns);
  void void_round();
  Status hear_from(int from, const std::string& bytes, std::int64_t now_ns);
  Status hear_notice(int place, const RequestList& list, std::uint64_t position,
                     std::int64_t now_ns);
  void hear_void(std::uint64_t position);

  Status hear_requests(int place, const std::string& bytes, std::int64_t now_ns);
  void hear_slot(int place, int slot, std::uint64_t assignments, std::int64_t now_ns);
  Status hear_request(int place, RequestMessage& ask, std::uint64_t changes, std::int64_t now_ns);
  Result<RankSet> senders_of(int place, const std::vector<int>& ranks) const;
  std::optional<Status> hear_of_ranks(RequestMessage& ask, std::int64_t now_ns);
  Status hear_of_tensors(RequestMessage& ask, RankSet who, std::uint64_t changes,
                         std::int64_t now_ns);
  Status hear_responses(const std::string& bytes, std::int64_t now_ns);
  Status hear_item(const Item& item, std::string_view bytes, std::int64_t now_ns);

  void release_held(std::int64_t now_ns);
  void hand_up();
  bool has_news() const;

  RankState state_;
  Children children_;
  const std::unique_ptr<Role> role_;
  const bool notes_ready_;
  std::vector<OutgoingMessage> to_parent_;
  std::deque<Held> eager_held_;
  std::vector<Request> held_;  // what a rank that has joined asks for waits until all have
  std::vector<Ready> ready_;
};

}  // namespace hvd
