// Role of a rank by its place in the tree: rank 0 decides (coordinator.h), the others hand up
// to their parent what their subtree asks for (tree_node.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/controller/message_table.h"
#include "engine/controller/news.h"
#include "engine/message/wire.h"

namespace hvd {

class Role {
 public:
  virtual ~Role() = default;

  // Somebody of the subtree has asked. The entry may be gone afterwards.
  virtual void asked(Entry& entry, std::int64_t now_ns) = 0;
  virtual void join(const Request& request, const std::vector<int>& ranks, std::int64_t now_ns) = 0;
  virtual void leave(int rank) = 0;
  // The ranks wait for the user at a prompt, or no longer: what waits for them is not stalled.
  virtual void park(Request request, const std::vector<int>& ranks, std::int64_t now_ns) = 0;
  // The ranks ask for nothing else than they say before what they wait for has ended (deadlock.h).
  virtual Status blocked(Request request, const std::vector<int>& ranks, std::int64_t now_ns) = 0;
  // An operation of so many bytes has been carried out.
  virtual void carried_out(std::int64_t /*bytes*/) {}
  // So much is in flight on this rank's devices.
  virtual void in_flight(const InFlight& /*in_flight*/) {}
  // Something waits for that.
  virtual bool holds_on_devices() const { return false; }

  virtual void work(std::int64_t now_ns) = 0;  // what is due
  virtual std::int64_t due_in(std::int64_t now_ns) const = 0;
  // It waits for nothing besides the requests in the table.
  virtual bool idle() const { return true; }
  virtual std::vector<std::string> take_warnings() { return {}; }

  // Towards the parent: the requests to be sent, empty: none.
  virtual bool has_requests() const { return false; }
  virtual std::string take_requests() { return {}; }
  // Of an eager round (eager/eager_rounds.h), the next thing to be sent: that this rank has sent
  // its data for the entry; that it will send none at this position.
  virtual void send_notice(Entry& /*entry*/, std::uint64_t /*position*/) {}
  virtual void send_closed(std::uint64_t /*position*/) {}
  // Rank 0: what has this slot has been carried out in a round.
  virtual void used(int /*slot*/) {}
  // From the parent: it does not know this slot any more.
  virtual void again(int /*slot*/, std::uint64_t /*version*/) {}
  // From the parent: what this rank's tables say already.
  virtual void learned(const Response& /*response*/, std::int64_t /*now_ns*/) {}
};

}  // namespace hvd
