// Controller: negotiation of the next operations between all ranks, as a pure state machine, one
// per rank. Input: requests of this rank's user, messages of other ranks, and the time. Output:
// messages, and the operations that this rank executes next. It has no thread, no channel and no
// tensor, so the same code runs in tests and in the simulator with thousands of ranks.
//
// Terms.
//   tree     rank 0 decides; the other ranks send the requests of their subtree up to their parent
//            (transport/mesh/mesh.h), and the decisions of rank 0 down to their children
//   cache    an earlier agreement has a number: a rank repeats its request with one bit, and the
//            response is the number (response_cache.h)
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
#include "transport/link/link.h"

namespace hvd {

class Controller {
 public:
  Controller(int rank, int size, const ControllerOptions& options);

  void submit(Request request, std::int64_t now_ns);
  // An invalid message returns a Status that names the sender.
  Status receive(int from, const std::string& bytes, std::int64_t now_ns);
  // The peer disconnected with a goodbye but without a request kLeave: it could not wait for its
  // turn.
  void peer_left(int peer, std::int64_t now_ns);
  // Try an eager round instead of submit(), for a sum whose data can be sent at once
  // (eager/eager_rounds.h). nullopt: use submit(). Else send the data with this tag before
  // anything else.
  std::optional<EagerTag> submit_eagerly(const Request& request, std::int64_t now_ns);
  const EagerRounds& eager() const { return state_.eager(); }
  // The peer's data for the open round have arrived.
  Status eager_received(int peer, std::uint32_t slot, std::int64_t now_ns);
  // True if the peer's data must arrive: the other ranks have completed the round, as far as this
  // rank knows, or the peer has announced that it sent its data.
  bool must_arrive(int peer) const;
  // An operation of `bytes` bytes has been executed (for autotune).
  void carried_out(std::int64_t bytes, std::int64_t now_ns);
  // Operations in flight on this rank's devices: call it before poll() while holds_on_devices().
  void in_flight(const InFlight& in_flight) { role_->in_flight(in_flight); }
  bool holds_on_devices() const { return role_->holds_on_devices(); }

  News poll(std::int64_t now_ns);
  // Time until poll() must be called even if nothing happens; negative: forever.
  std::int64_t due_in(std::int64_t now_ns) const;
  // No rank of this rank's subtree waits for another rank, as far as this rank knows.
  bool idle() const;
  // Requests with missing ranks: on rank 0 all of them, on other ranks those of their subtree.
  std::vector<Waiting> waiting() const;
  // The ranks of a set; empty: no set has this id.
  std::vector<int> ranks_of(int set) const;

 private:
  void submit_blocked(const Request& request, std::int64_t now_ns);
  void submit_to_set(const ProcessSet& set, Request request, std::int64_t now_ns);
  void record_ready(const RankSet& who, const Entry& entry, std::int64_t now_ns);

  // Input that must wait until the open round is decided, or until this rank has completed the
  // rounds that rank 0 had completed.
  struct Held {
    int from = -1;  // a rank
    std::string bytes;
    std::optional<Request> request;  // of this rank, instead of a message
    bool peer_left = false;
  };
  void record_submission(Kind kind);
  bool hold_peer_left(int peer, std::int64_t now_ns);
  void work_on_round(std::int64_t now_ns);
  std::int64_t round_due_in(std::int64_t now_ns) const;
  bool is_early(int from, const std::string& bytes) const;
  Status receive_while_bound(int from, const std::string& bytes, std::int64_t now_ns);
  Status release_all(std::int64_t now_ns);
  bool may_begin_round(const Entry& entry) const;
  void end_round(std::int64_t now_ns);
  void void_round();
  Status receive_from(int from, const std::string& bytes, std::int64_t now_ns);
  Status handle_notice(int place, const RequestList& list, std::uint64_t position,
                       std::int64_t now_ns);
  void handle_void(std::uint64_t position);

  Status handle_requests(int place, const std::string& bytes, std::int64_t now_ns);
  void handle_slot(int place, int slot, std::uint64_t assignments, std::int64_t now_ns);
  Status handle_request(int place, RequestMessage& message, std::uint64_t changes,
                        std::int64_t now_ns);
  Result<RankSet> senders_of(int place, const std::vector<int>& ranks) const;
  std::optional<Status> handle_rank_request(RequestMessage& message, std::int64_t now_ns);
  Status handle_tensor_request(RequestMessage& message, RankSet who, std::uint64_t changes,
                               std::int64_t now_ns);
  Status handle_responses(const std::string& bytes, std::int64_t now_ns);
  Status handle_item(const Item& item, std::string_view bytes, std::int64_t now_ns);

  void release_held(std::int64_t now_ns);
  void send_up();
  bool has_news() const;

  RankState state_;
  Children children_;
  const std::unique_ptr<Role> role_;
  const bool records_ready_;
  std::vector<OutgoingMessage> to_parent_;
  std::deque<Held> eager_held_;  // in order of arrival
  std::vector<Request>
      held_;  // requests of this rank after it has joined: they wait until all ranks have
  std::vector<Ready> ready_;
};

}  // namespace hvd
